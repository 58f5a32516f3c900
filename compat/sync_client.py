"""Drives a running host with the unmodified, synchronous E2B SDK for Python, as its users do.

Prints a line per check and, last, the total. Exit status 1 when a check failed.
Reads E2B_API_KEY, E2B_API_URL and E2B_SANDBOX_URL, as the SDK does.
"""

import sys
import time
import traceback

import e2b
from e2b import CommandExitException, NotFoundException, Sandbox, SandboxException

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def listed(**query):
    """Every sandbox that the paged list shows."""
    pages = Sandbox.list(**query)
    found = []
    while pages.has_next:
        found.extend(pages.next_items())
    return found


@check
def create_gives_a_running_sandbox_with_its_metadata(sandbox):
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.metadata == {"purpose": "compat a=b&c"}, info.metadata
    assert info.state.value == "running", info.state


@check
def files_write_read_and_list(sandbox):
    written = sandbox.files.write("notes/hello.txt", "hällo\n")
    assert written.path == "/home/user/notes/hello.txt", written.path
    assert sandbox.files.read("notes/hello.txt") == "hällo\n"
    names = [entry.name for entry in sandbox.files.list("notes")]
    assert names == ["hello.txt"], names
    assert sandbox.files.exists("notes/hello.txt") and not sandbox.files.exists("notes/none.txt")


@check
def file_bytes_come_back_unchanged(sandbox):
    data = bytes(range(256)) * 1024
    sandbox.files.write("/tmp/bytes.bin", data)
    assert bytes(sandbox.files.read("/tmp/bytes.bin", format="bytes")) == data


@check
def make_dir_says_whether_it_made_one_and_remove_removes(sandbox):
    assert sandbox.files.make_dir("made/deep") is True
    assert sandbox.files.make_dir("made/deep") is False
    sandbox.files.remove("made")
    assert not sandbox.files.exists("made")


@check
def a_missing_file_is_not_found(sandbox):
    try:
        sandbox.files.read("nowhere.txt")
    except NotFoundException:
        return
    raise AssertionError("no exception")


@check
def commands_run_gives_stdout_stderr_and_exit_code(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0), result


@check
def a_failing_command_raises_with_its_code(sandbox):
    try:
        sandbox.commands.run("printf partial; exit 3")
    except CommandExitException as error:
        assert error.exit_code == 3 and error.stdout == "partial", error
        return
    raise AssertionError("no exception")


@check
def commands_see_environment_directory_and_user(sandbox):
    assert sandbox.commands.run("echo $LETTERS", envs={"LETTERS": "a b"}).stdout == "a b\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("pwd; id -un").stdout == "/home/user\nuser\n"
    assert sandbox.commands.run("id -un", user="root").stdout == "root\n"


@check
def output_is_streamed_while_the_command_runs(sandbox):
    seen = []
    sandbox.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=seen.append)
    assert "".join(seen) == "1\n2\n3\n", seen


@check
def a_background_command_takes_input_and_can_be_killed(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "to the cat\n")
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    for stdout, _, _ in handle:
        assert stdout == "to the cat\n", stdout
        break
    assert handle.kill() is True
    assert sandbox.commands.kill(handle.pid) is False


@check
def a_timeout_ends_the_command_and_says_so(sandbox):
    try:
        sandbox.commands.run("sleep 60", timeout=1)
    except e2b.TimeoutException:
        return
    raise AssertionError("no exception")


@check
def set_timeout_moves_the_end(sandbox):
    before = sandbox.get_info().end_at
    sandbox.set_timeout(1200)
    after = sandbox.get_info().end_at
    assert (after - before).total_seconds() > 600, (before, after)


@check
def connect_never_shortens_the_life_of_a_sandbox(sandbox):
    before = sandbox.get_info().end_at
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.commands.run("echo again").stdout == "again\n"
    assert again.get_info().end_at == before


@check
def list_finds_it_by_metadata_and_state(sandbox):
    query = e2b.SandboxQuery(metadata={"purpose": "compat a=b&c"}, state=[e2b.SandboxState.RUNNING])
    assert [entry.sandbox_id for entry in listed(query=query)] == [sandbox.sandbox_id]
    none = e2b.SandboxQuery(metadata={"purpose": "something else"})
    assert listed(query=none) == []


@check
def pause_and_connect_keep_files_and_processes(sandbox):
    handle = sandbox.commands.run("sleep 300", background=True, timeout=0)
    boot = sandbox.files.read("/proc/sys/kernel/random/boot_id")
    sandbox.files.write("kept.txt", "kept")
    sandbox.pause()
    paused = e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])
    assert sandbox.sandbox_id in [entry.sandbox_id for entry in listed(query=paused)]
    assert not sandbox.is_running()
    resumed = Sandbox.connect(sandbox.sandbox_id)
    assert resumed.files.read("kept.txt") == "kept"
    assert resumed.files.read("/proc/sys/kernel/random/boot_id") == boot
    assert handle.pid in [process.pid for process in resumed.commands.list()]
    assert resumed.commands.kill(handle.pid) is True


@check
def pausing_twice_is_no_error(sandbox):
    sandbox.pause()
    sandbox.pause()
    Sandbox.connect(sandbox.sandbox_id)
    assert sandbox.is_running()


@check
def a_timeout_of_zero_ends_a_sandbox_now(_):
    short = Sandbox.create(timeout=60)
    short.set_timeout(0)
    deadline = time.monotonic() + 30
    while short.is_running():
        assert time.monotonic() < deadline, "still running after 30 s"
        time.sleep(0.05)


@check
def bad_requests_are_told_apart(_):
    for make, expected in [
        (lambda: Sandbox.create("no-such-template"), SandboxException),
        (lambda: Sandbox.connect("inosuchsandbox0000000"), NotFoundException),
        (lambda: Sandbox.create(api_key="e2b_" + "0" * 40), e2b.AuthenticationException),
    ]:
        try:
            made = make()
        except expected:
            continue
        raise AssertionError(f"{made} instead of {expected.__name__}")


@check
def kill_is_final_and_says_whether_there_was_one(sandbox):
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert not sandbox.is_running()
    assert sandbox.sandbox_id not in [entry.sandbox_id for entry in listed()]


def main():
    failed = 0
    sandbox = Sandbox.create(timeout=300, metadata={"purpose": "compat a=b&c"})
    try:
        for function in CHECKS:
            try:
                function(sandbox)
                print(f"ok      {function.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
    finally:
        sandbox.kill()
    print(f"{len(CHECKS) - failed} passed, {failed} failed, 0 skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
