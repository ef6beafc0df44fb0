"""Programs next to the package, which are no part of it."""
