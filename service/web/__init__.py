"""The page: what its views show, as records and templates. The routes are in ``service.http.pages``."""
