"""What the site has beside docs/: pages of the project and a reference, both made when it is built."""
