"""``python -m fuzz`` is the ``foldfuzz`` command."""

from fuzz.cli import main

main()
