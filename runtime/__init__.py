"""The server: gateway, endpoints, admission, residency, slots, frames, metrics, settings and command line."""
