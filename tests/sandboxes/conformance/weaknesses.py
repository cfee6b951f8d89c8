"""What a back-end is known not to hold: (back-end, check) -> reason. Each must really fail; a pass is a failure too."""

_NO_SIGNAL = "the kernel counts no refused growth of a file: only the signal tells, and Python ignores it"
_ADDRESSES = "RLIMIT_AS refuses memory before the watcher sees any past the limit: the program gets a MemoryError"
_STACKS = "RLIMIT_AS counts the address space that stacks and allocators set aside, not the memory they use"
_TMPFS = "files in memory belong to no process that a watcher could ask; the disk limit bounds them"

_RLIMITS = {
    "test_memory_past_the_limit_is_the_memory_limit": _ADDRESSES,
    "test_the_sandbox_can_be_used_after_a_breach[memory]": _ADDRESSES,
    "test_a_limit_broken_between_commands_is_in_the_usage": "a watcher looks only while a command runs",
    "test_files_in_memory_are_memory": _TMPFS,
    "test_a_bomb_is_the_process_limit[threads]": _STACKS,
}
_PROC = "of /proc, only its own folder is open to a command's first process, else those of the host were"
_MEMORY_FOLDERS = "there is no file system in memory: /dev/shm and /tmp are the host's, and closed"
_PLAIN = {
    "test_leaving_a_process_ends_it_and_its_children": _PROC,
    "test_the_trees_of_one_hundred_commands_leave_the_sandbox_as_it_was": _PROC,
    "test_no_process_of_anybody_else_can_be_seen_or_hit": _PROC,
    "test_a_program_with_the_set_user_bit_gains_nothing": _PROC,
    "test_no_file_of_another_sandbox_can_be_opened": _MEMORY_FOLDERS,
    "test_files_in_memory_are_memory": _MEMORY_FOLDERS,
    "test_writable_folders_have_one_size_together[work-and-shm]": _MEMORY_FOLDERS,
    "test_a_warm_program_may_use_what_the_standard_library_offers": "multiprocessing needs semaphores in /dev/shm",
    "test_the_devices_are_the_harmless_ones": "/dev is the host's, and cannot be listed",
    "test_page_cache_alone_is_no_breach": "folders that hold more than may be read, such as /usr, cannot be listed",
    "test_programs_have_a_loopback_of_their_own": "there is one network for all, and programs have no part in it",
    "test_the_host_is_not_named": "there is one name for all",
}
_ONE_USER = {
    "test_trusted_commands_have_another_user_whose_files_are_closed": "there is one user only",
}
_SAME_USER = {
    "test_the_job_folder_can_be_read_and_not_changed": "they are the user's own files: Landlock guards no modes",
    "test_what_is_no_regular_file_is_refused[socket]": "Unix sockets lead to the user's own services: none can be made",
    "test_there_is_no_capability_and_no_way_to_one": "only root can empty the bounding set; no_new_privs makes it moot",
}
_OWN_KERNEL = "its kernel grants what has no effect outside of it"
_GUEST_KERNEL = {
    "test_workspace_and_tmpdir_can_be_written_and_are_empty": "Debian's runsc of 2022 fails statx: `ls` cannot list",
    "test_programs_start_with_the_three_streams_and_no_signal_masked": "/proc/self/status does not tell of signals",
    "test_too_many_files_put_are_refused": "it does not limit inodes",
    "test_too_many_files_are_the_disk_limit": "it does not limit inodes",
    "test_only_the_writable_folders_can_be_written": _OWN_KERNEL + ": /dev/fuse and /dev/net/tun",
    "test_the_devices_are_the_harmless_ones": _OWN_KERNEL + ": /dev/fuse, and device files that lead nowhere",
    "test_nothing_of_the_keeper_can_be_touched": "its /proc shows environ, maps and auxv of everyone inside; not mem",
    "test_no_program_comes_before_others": _OWN_KERNEL + ": priorities",
    "test_the_sandbox_can_be_used_after_a_breach[memory]": "it gives memory back late: the limit is still broken",
}
_ALL = {"test_a_file_past_its_size_is_told_although_the_signal_is_ignored": _NO_SIGNAL}

WEAKNESSES: dict[tuple[str, str], str] = {
    (backend, check): reason
    for backend, weak in {
        "bubblewrap": _ALL,
        "bubblewrap-image": _ALL,
        "docker": _ALL,
        "gvisor": _ALL | _GUEST_KERNEL,
        "remote": _ALL,  # it is bubblewrap over there
        "bubblewrap-rlimits": _ALL | _RLIMITS,
        "bubblewrap-rootless": _ALL | _RLIMITS | _ONE_USER,
        "subprocess": _ALL | _PLAIN,
        "subprocess-rlimits": _ALL | _RLIMITS | _PLAIN,
        "subprocess-rootless": _ALL | _RLIMITS | _PLAIN | _ONE_USER | _SAME_USER,
    }.items()
    for check, reason in weak.items()
}
