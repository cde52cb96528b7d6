"""`python -m ptrl.core.cli`, where the script `ptrl` is not on the path."""

from ptrl.core.cli import main

main()
