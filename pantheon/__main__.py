"""`python -m pantheon` is the command line."""

from pantheon_main import main

if __name__ == "__main__":
    main()
