"""HTTP endpoints, one file per surface. FastAPI is imported here and in the server shell only."""
