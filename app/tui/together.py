"""What can have the focus on each screen: keys of the app, the screen, and what is around the focus
act at once there."""

# Classes that have bindings, by their names; each line has widgets from the outer to the inner one.
# Lines that another one has more than are left out; "" is the screen alone.
TOGETHER: dict[str, tuple[str, ...]] = {
    "ChatScreen": (
        "Prompt",
        "Transcript MessageView",
        "Transcript Starter",
        "ChatSidebar SearchLine",
    ),
    "CompareScreen": ("Prompt",),
    "ComparePromptsScreen": ("PromptsForm Line", "PromptsForm PathLine", "RowTable"),
    "AnswersScreen": ("",),
    "BlindScreen": ("",),
    "BatchScreen": (
        *("BatchForm Line", "BatchForm PathLine", "BatchForm Check"),
        *("BatchJob BatchTable", "BatchJob Words"),
    ),
    "QuantizeScreen": (
        *("QuantizeForm Line", "QuantizeForm PathLine", "QuantizeForm Check"),
        *("QuantizeForm RecipeCards", "QuantizeResult FileTable"),
    ),
    "MonitorScreen": ("EventLogView SearchLine",),
    "AskScreen": ("Line",),
    "AttachScreen": ("_Line",),
    "BatchFilesScreen": ("",),
    "BatchJobsScreen": ("JobTable", "PathLine"),
    "BatchLeaveScreen": ("",),
    "BatchPresetsScreen": ("PresetTable",),
    "BatchResumeScreen": ("",),
    "BatchRowScreen": ("",),
    "ChatsScreen": ("SearchLine",),
    "ConfirmScreen": ("",),
    "CopyChoice": ("",),
    "ExportScreen": ("_Line",),
    "FindScreen": ("SearchLine", "Check", "RepoTable", "BuildTable"),
    "HelpScreen": ("SearchLine",),
    "LoadScreen": ("LoadForm Line",),
    "ModelsScreen": ("SearchLine", "ModelTable"),
    "OverflowScreen": ("",),
    "Palette": ("PaletteLine",),
    "SamplingScreen": ("Line",),
    "SystemScreen": ("Area",),
    "ThemeScreen": ("",),
    "TypesScreen": ("",),
}
