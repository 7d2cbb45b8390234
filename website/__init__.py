"""Makes what the site has besides docs/ when it is built: pages of the project and a reference."""
