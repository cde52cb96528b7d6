"""Format rewards and gates, and the scanners they share with other plugins."""

from ptrl_plugin_format.boxes import Box, find_boxes, is_blank, is_visible, last_box
from ptrl_plugin_format.thinking import after_thinking

__all__ = ["Box", "after_thinking", "find_boxes", "is_blank", "is_visible", "last_box"]
