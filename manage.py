#!/usr/bin/env python
import os
import select
import sys

# The exit status that a shell reports for a process that SIGPIPE has ended.
EXIT_BROKEN_PIPE = 141


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "eventservice.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import DatabaseError, InterfaceError

    try:
        try:
            if sys.argv[1:2] == ["newkey"]:
                create_key()
            else:
                execute_from_command_line(sys.argv)
        finally:
            sys.stdout.flush()
    except ImproperlyConfigured as wrong:
        sys.exit(str(wrong))
    except (DatabaseError, InterfaceError) as error:
        from eventservice.management.database import explain_database_error

        command = "".join(sys.argv[1:2])
        explanation = None if "--traceback" in sys.argv else explain_database_error(error, command)
        if explanation is None:
            raise
        sys.exit(explanation)
    except BrokenPipeError:
        if not is_output_closed():
            raise
        # Whoever read the output, for example `head`, needs no more of it. Python flushes it once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_BROKEN_PIPE)


def create_key() -> None:
    """Run `newkey` without the settings, which may be invalid for want of a key."""
    from eventservice.management.commands.newkey import Command

    Command().run_from_argv(sys.argv)


def is_output_closed() -> bool:
    """Return whether nobody reads the output any more, as opposed to a broken connection of the command."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


if __name__ == "__main__":
    main()
