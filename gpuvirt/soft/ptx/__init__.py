"""PTX as text: images, modules, instructions, where their data lies, linking."""
