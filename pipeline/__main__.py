"""Runs `python -m pipeline <job>`, and is the file for spark-submit."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
