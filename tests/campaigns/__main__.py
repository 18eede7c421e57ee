"""Run a campaign: ``python -m tests.campaigns NAME [arguments]``. ``NAME --help`` lists the arguments.

Each campaign writes one report below ``build/``, prints it, and exits with 1 if anything is wrong.
"""

import argparse
import importlib
import sys

CAMPAIGNS = (
    *("model", "simulation", "contract", "storm", "jepsen", "spark", "soak"),
    *("stores", "tables", "plugin", "release", "compat"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("name", choices=CAMPAIGNS)
    name = parser.parse_args(sys.argv[1:2]).name
    campaign = importlib.import_module(f"tests.campaigns.{name}.campaign")
    exit_code: int = campaign.main(sys.argv[2:])
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
