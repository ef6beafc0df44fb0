"""Values that hold data about people and refuse to be printed."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from dpflow.exceptions import PublicError, public_name


class Withheld:
    """Base of values that can be used inside a step and printed nowhere.

    Text, logs and debuggers get a fixed placeholder; copies, pickles, JSON, arrays,
    comparisons, truth values, lengths and iteration are errors. This stops accidents
    (a log line, a result store, a cache key), not a body that means to leak.
    """

    # No instance dictionary: vars() and serialisers that walk it find nothing.
    __slots__ = ()

    #: Makes numpy's operators give up instead of calling them element by element.
    __array_ufunc__: ClassVar[None] = None

    def __repr__(self) -> str:
        """Name the type and nothing else."""
        return f"<{type(self).__name__}: withheld>"

    def __format__(self, spec: str) -> str:
        """Show the placeholder, whatever the format."""
        return repr(self)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        msg = (
            f"a {public_name(type(self))} holds data about people: it cannot be "
            "copied, stored, compared, counted or shown. Use it inside the step only."
        )
        raise PublicError(msg)

    __reduce__ = __reduce_ex__ = __getstate__ = __copy__ = __deepcopy__ = _refuse
    __iter__ = __len__ = __getitem__ = __contains__ = __reversed__ = _refuse
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __array__ = __bytes__ = _refuse
    __eq__ = __ne__ = __hash__ = _refuse
