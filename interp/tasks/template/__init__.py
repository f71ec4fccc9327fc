"""Template tasks (`template` §2.1): reasoning with, and copying of, symbols not seen in
training."""

from interp.tasks.template.task import TemplateTask, random_templates

__all__ = ["TemplateTask", "random_templates"]
