"""`python -m pipeline <job>`, and the file that spark-submit is given."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
