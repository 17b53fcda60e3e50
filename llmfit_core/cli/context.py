"""What every command shares: the plugin registry of this process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmfit_core.plugins import PluginRegistry


@cache
def registry() -> PluginRegistry:
    """The registry, loaded when it is first asked for. `registry.cache_clear()` forgets it."""
    from llmfit_core.plugins import load_plugins

    return load_plugins()
