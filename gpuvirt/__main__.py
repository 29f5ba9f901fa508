from gpuvirt.cli import main

main()
