"""A `Report` as sections of text tables, in the order in which they are shown."""

from __future__ import annotations

from ecorl.report.model import Report
from ecorl.report.render import carbon_tables, event_tables, spending_tables
from ecorl.report.render.beside_tables import beside_section
from ecorl.report.render.course.tables import course_section
from ecorl.report.render.gear_tables import training_stage_section
from ecorl.report.render.layout import Section
from ecorl.report.training_stage.words import choices_words


def sections(report: Report) -> list[Section]:
    """All sections in order; one without anything to show says so in its lead."""
    geared = report.training_stage
    return [
        *([] if report.course is None else [course_section(report.course)]),
        spending_tables.energy_section(report.spending),
        carbon_tables.carbon_section(report.footprint, report.stages, report.spending.parts),
        *(
            []
            if report.pauses is None
            else [carbon_tables.pauses_section(report.pauses, choices_words(geared))]
        ),
        *([] if report.beside is None else [beside_section(report.beside)]),
        spending_tables.stages_section(report.stages, report.remarks),
        *([] if geared is None else [training_stage_section(geared)]),
        spending_tables.comparisons_section(
            report.comparisons, report.balance, report.card_timeline, report.head.path
        ),
        event_tables.training_section(report),
        event_tables.waits_section(report),
        event_tables.decisions_section(report),
        event_tables.faults_section(report),
        event_tables.telemetry_section(report.telemetry),
        *([event_tables.nodes_section(report.nodes)] if report.nodes else []),
    ]
