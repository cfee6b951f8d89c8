"""The one way out of a sandbox: a proxy that lets through what the task lists."""
