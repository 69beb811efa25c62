"""The HTTP server: llama-server's routes and wire formats on top of `llamaserve.Engine`."""
