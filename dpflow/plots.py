"""Pictures, under the name by which users import them; `show` makes them."""

from dpflow.show.figures import *  # noqa: F403
from dpflow.show.figures import __all__  # noqa: F401
