"""What a cost is worth in each notion of privacy, one function per theorem.

Prices are dispatched on the class of the cost; importing this package registers them
all. It may import `costs`, and no rule.
"""

import dpflow.accounting.curves.composed
import dpflow.accounting.curves.noise  # noqa: F401
