"""Progress bars on a terminal, and progress lines in a pipe, for the campaigns and the demo."""

import threading

from rich.progress import Progress, Task

LINE_INTERVAL_S = 5.0
"""How often a line is printed in a pipe."""


class ProgressLines(Progress):
    """Rich's progress bars. In a pipe these appear only at the end, so a pipe also gets a line every few seconds."""

    _ended: threading.Event | None = None

    def start(self) -> None:
        super().start()
        if not self.console.is_terminal and self._ended is None:
            self._ended = threading.Event()
            threading.Thread(target=self._print_lines, args=(self._ended,), name="progress", daemon=True).start()

    def stop(self) -> None:
        if self._ended is not None:
            self._ended.set()
        super().stop()

    def _print_lines(self, ended: threading.Event) -> None:
        while not ended.wait(LINE_INTERVAL_S):
            tasks = self.tasks
            for task in tasks:
                # Always print the newest task, to show that uncounted work continues.
                if not task.finished or task is tasks[-1]:
                    self.console.print(_line(task), highlight=False)


def _line(task: Task) -> str:
    total = "" if task.total is None else f" of {task.total:,.0f}"
    return f"{task.elapsed or 0:.0f} s: {task.description}: {task.completed:,.0f}{total}"
