"""Template tasks (`template` §2.1): reasoning with, and copying of, symbols never seen.

text          templates as strings, equivalence, random sets
substitution  uniform and Zipf draws, the diversity ρ
task          strings of templates with real or symbolic labels
named         same/different, αβα/αββ, majority, relational match-to-sample …
"""

from interp.tasks.template.task import TemplateTask, random_templates

__all__ = ["TemplateTask", "random_templates"]
