"""The tests of dpflow; a package, for other distributions bring a `tests` too."""
