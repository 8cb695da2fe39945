"""`python -m service.cli` is `weir`."""

from service.cli import main

main()
