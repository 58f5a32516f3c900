//! The promises that the fake can be told to break, each with the cases that must see it.

/// Makes the enum and its table from one list.
macro_rules! faults {
    ($($name:ident, $what:literal, [$($case:literal),+];)+) => {
        /// One broken promise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Fault {
            $(#[doc = $what] $name,)+
        }

        /// Every fault.
        pub const FAULTS: &[FaultInfo] = &[$(FaultInfo {
            fault: Fault::$name,
            name: stringify!($name),
            what: $what,
            seen_by: &[$($case),+],
        }),+];
    };
}

/// A fault with what is known of it.
#[derive(Debug)]
pub struct FaultInfo {
    /// The fault.
    pub fault: Fault,
    /// Its name in reports.
    pub name: &'static str,
    /// What the fake does wrong.
    pub what: &'static str,
    /// The cases that must fail with it. Others may.
    pub seen_by: &'static [&'static str],
}

faults! {
    WorkspaceIsNotMade, "A create returns before the Workspace is there.",
        ["bindings::create_gives_usable_home_and_workspace"];
    NewWorkspaceHasContent, "A new Workspace has a file in it.", ["bindings::create_gives_an_empty_workspace"];
    SameSpecSameBinding, "A second create of the same spec takes the first one's name.",
        ["bindings::create_makes_a_new_participant_each_time"];
    ParallelCreatesCollide, "A free name is looked up first and taken later.",
        ["bindings::parallel_creates_are_all_usable"];
    CreateLeavesTheBindingActive, "A new Binding is left running.", ["bindings::create_leaves_the_binding_idle"];
    FailedCreateLeaves, "A create that fails leaves a room that nobody knows.",
        ["snapshots::a_missing_snapshot_fails_the_create"];
    MissingSnapshotFallsBack, "A missing snapshot is replaced by the default Home.",
        ["snapshots::a_missing_snapshot_fails_the_create", "snapshots::a_deleted_snapshot_is_gone"];
    ExistingWorkspaceIsIgnored, "An existing Workspace that cannot be shared is ignored, and a new one made.",
        ["sharing::an_existing_workspace_is_refused"];
    CoupledRefsDiffer, "Binding and Workspace have different refs though they are one.",
        ["sharing::coupled_refs_are_equal"];
    AttachClearsTheWorkspace, "Attaching a Workspace empties it.",
        ["sharing::a_second_binding_sees_the_workspace_uncleared"];
    LossIsNotTold, "A lost Binding is reported as a failed acquire.",
        ["bindings::acquire_of_an_unknown_binding_is_lost", "bindings::acquire_of_a_destroyed_binding_is_lost",
         "bindings::acquire_without_the_workspace_is_lost"];
    AcquireRecreates, "An acquire of a Binding that isn't there makes a new one.",
        ["bindings::acquire_of_an_unknown_binding_is_lost", "bindings::acquire_of_a_destroyed_binding_is_lost"];
    AcquireRestoresTheWorkspace, "An acquire makes a Workspace that is gone anew.",
        ["bindings::acquire_without_the_workspace_is_lost"];
    ReleaseDeletes, "A release destroys the Binding.",
        ["bindings::release_never_deletes", "bindings::content_persists_over_release"];
    ReleaseLosesTheWorkspace, "A release empties the Workspace.",
        ["bindings::content_persists_over_release", "bindings::ten_rounds_keep_every_write"];
    ReleaseLosesTheLastWrite, "A release loses the file that was written last in Home.",
        ["bindings::ten_rounds_keep_every_write"];
    ReleaseLosesOddFiles, "A release loses a hard link.", ["bindings::odd_files_survive_release"];
    ReleaseEndsProcesses, "A release ends what runs, though memory is promised to be kept.",
        ["bindings::processes_survive_release"];
    ReleaseDoesNotSuspend, "A release leaves the Binding running.",
        ["bindings::release_leaves_the_binding_idle", "leases::with_lease_releases_after_success",
         "leases::with_lease_releases_after_failure"];
    ForeignLeaseIsAccepted, "Another backend's lease is released without a word.",
        ["leases::a_foreign_lease_is_refused"];
    SecondReleaseIsAccepted, "A second release of one lease succeeds.", ["leases::a_second_release_is_refused"];
    ReleasedLeaseStillRuns, "Commands run under a released lease.", ["leases::a_released_lease_runs_nothing"];
    DroppedLeaseIsForgotten, "A lease that is dropped stays held.",
        ["leases::a_dropped_lease_is_released", "leases::a_lease_of_a_dead_task_is_released"];
    DroppedLeaseDestroys, "A lease that is dropped takes the Binding with it.",
        ["leases::a_dropped_lease_loses_nothing"];
    DestroyIsNotRepeatable, "A destroy of what is gone fails.",
        ["bindings::destroy_is_repeatable", "bindings::destroy_of_an_unknown_binding_succeeds"];
    DestroyedBindingIsListed, "A destroyed Binding stays on the list.",
        ["bindings::destroy_takes_the_binding_off_the_list"];
    DestroyLeavesProcesses, "A destroy leaves the processes running.", ["bindings::destroy_ends_running_commands"];
    DestroyLeavesFiles, "A destroy leaves the directory.", ["bindings::destroy_is_repeatable"];
    DestroyEndsEverybodysProcesses, "A destroy ends the processes of all Bindings.",
        ["isolation::destroy_spares_other_bindings"];
    DestroyTakesTheSnapshots, "A destroy takes the snapshots that were made from the Binding.",
        ["snapshots::destroy_leaves_the_snapshot"];
    KeepingTheWorkspaceDestroysIt, "A destroy that is to keep the Workspace destroys it.",
        ["bindings::keeping_the_workspace_is_refused", "sharing::a_binding_destroyed_alone_keeps_the_workspace"];
    WorkspaceRefIsNotChecked, "A destroy doesn't look at the Workspace it was told.",
        ["bindings::destroy_with_another_workspace_is_refused"];
    HomesAreShared, "All Bindings have one Home.", ["isolation::files_are_private"];
    ProcessTableIsShared, "Bindings see each other's processes.", ["isolation::processes_are_private"];
    OrphansAreNotReaped, "Nobody waits for orphans.", ["isolation::orphans_are_reaped"];
    DroppedCreateLeaves, "A create whose caller goes away leaves what it had made.",
        ["cancellation::a_dropped_create_leaves_nothing"];
    DroppedAcquireStaysActive, "An acquire whose caller goes away leaves the Binding running.",
        ["cancellation::a_dropped_acquire_leaves_the_binding_idle"];
    DroppedSnapshotLeaves, "A snapshot whose caller goes away stays.",
        ["cancellation::a_dropped_snapshot_leaves_nothing"];
    DroppedDestroyForgets, "A destroy takes the Binding off the list before anything else.",
        ["cancellation::a_dropped_destroy_can_be_repeated"];
    SnapshotSharesItsStorage, "A derived Binding's Home is the snapshot itself.",
        ["snapshots::derived_bindings_are_private"];
    SnapshotIsLive, "A snapshot is a pointer to the source's Home.",
        ["snapshots::later_writes_are_not_in_it", "snapshots::destroy_leaves_the_snapshot"];
    SnapshotLosesOddFiles, "A snapshot loses a dangling link.",
        ["snapshots::a_binding_has_exactly_the_snapshots_home"];
    SnapshotGetsTheDefaultsBack, "A create from a snapshot adds what a default Home has.",
        ["snapshots::a_binding_has_exactly_the_snapshots_home"];
    SnapshotForgetsDeletions, "A second snapshot shows what was deleted since the first.",
        ["snapshots::a_second_generation_keeps_deletions"];
    SnapshotLeaksTheWorkspace, "The source's Workspace comes along.",
        ["snapshots::workspace_content_does_not_leak"];
    SnapshotReleasesTheSource, "A snapshot ends what the source runs.", ["snapshots::the_source_goes_on"];
    SnapshotOfAForeignLease, "A snapshot of another backend's lease is made.",
        ["leases::a_snapshot_of_a_foreign_lease_is_refused"];
    SnapshotOfAReleasedLease, "A snapshot of a released lease is made.",
        ["leases::a_snapshot_of_a_released_lease_is_refused"];
    SnapshotDeleteIsNotRepeatable, "A delete of what is gone fails.", ["snapshots::delete_is_repeatable"];
    SnapshotDeleteTakesDerived, "A delete destroys the Bindings that came from the snapshot.",
        ["snapshots::delete_leaves_derived_bindings"];
    SnapshotDeleteOnlyHides, "A delete says that it's done and does nothing.",
        ["snapshots::a_deleted_snapshot_is_gone"];
    ExitPrecedesOutput, "The end is told before the output is there.", ["commands::output_precedes_exit"];
    ExitCodeIsLost, "Every command exits with 0.",
        ["commands::output_and_exit_code_are_the_commands", "commands::exit_codes_tell_not_found_from_not_executable"];
    OutputIsCutSilently, "Output over a limit is dropped without a word.",
        ["commands::large_output_is_read_in_windows"];
    TruncationIsNotTold, "A window doesn't say that there is more.", ["commands::large_output_is_read_in_windows"];
    WindowsCutCharacters, "A window may end inside a character.", ["commands::large_output_is_read_in_windows"];
    BlankLinesAreDropped, "Blank lines are dropped and line ends added.", ["commands::output_is_not_edited"];
    StandardInputStaysOpen, "Standard input is a pipe that nobody closes.", ["commands::standard_input_is_empty"];
    HomeIsTheDaemons, "HOME is the daemon's.", ["commands::home_is_the_leases_home"];
    CallersHomeWins, "A caller's HOME replaces the lease's.", ["commands::home_is_the_leases_home"];
    CommandsStartInHome, "Commands start in Home.", ["commands::the_working_directory_follows_the_layout"];
    WorkingDirectoryIsNotChecked, "A working directory outside is taken.",
        ["commands::a_working_directory_outside_is_refused"];
    MissingWorkingDirectoryFallsBack, "A missing working directory is replaced by the Workspace.",
        ["commands::a_missing_working_directory_is_an_error"];
    VariablesAreDropped, "Variables don't reach the command.", ["commands::variables_reach_the_command"];
    InterpreterLineIsIgnored, "Every script goes to sh.", ["commands::an_interpreter_line_is_followed"];
    JobIdsCollide, "All jobs have one id.", ["commands::concurrent_commands_keep_their_outputs_apart"];
    RunTimeoutEndsTheJob, "A run that isn't waited for ends the job.", ["jobs::a_run_that_times_out_goes_on"];
    OffsetIsIgnored, "Every read starts at the beginning.", ["jobs::reads_continue_at_the_offset"];
    InputIsDropped, "What is typed is dropped.", ["jobs::input_reaches_the_terminal"];
    InterruptEndsTheLeaderOnly, "An interrupt kills the first process only.",
        ["jobs::an_interrupt_ends_the_whole_tree"];
    InterruptDoesNotAsk, "An interrupt kills at once.", ["jobs::an_interrupt_asks_first"];
    InterruptedJobIsExited, "An interrupted job is said to have exited.",
        ["jobs::an_interrupted_job_keeps_its_output"];
    RunningJobIsDeleted, "A running job is deleted without force, and runs on.",
        ["jobs::a_running_job_is_deleted_by_force_only"];
    JobDeleteIsNotRepeatable, "A second delete of one job fails.", ["jobs::an_unknown_job_is_not_found"];
    UnknownJobIsInternal, "An unknown job is an internal error.", ["jobs::an_unknown_job_is_not_found"];
    FilesAreText, "Bytes that are no UTF-8 are replaced.", ["files::all_bytes_round_trip"];
    ReadsLoseThePiecesAfterTheFirst, "A read ends after its first piece.", ["files::a_large_file_round_trips"];
    WrittenFilesAreElsewhere, "Commands don't find what was written.", ["files::files_and_commands_see_each_other"];
    WritesKeepTheOldTail, "A shorter write leaves the old file's end.", ["files::a_write_replaces_and_makes_parents"];
    ListHidesDotFiles, "A list has no hidden files.", ["files::a_list_has_the_direct_children"];
    MissingFileIsInternal, "A missing file is an internal error.", ["files::a_missing_path_is_not_found"];
    LookingMakesDirectories, "Asking whether a path is there makes it.", ["files::a_missing_path_is_not_found"];
    WrongTypeIsInternal, "A path of the wrong type is an internal error.", ["files::the_wrong_type_is_refused"];
    MakeDirIsAlwaysNew, "Every directory is said to be new.", ["files::make_dir_says_whether_it_is_new"];
    RemoveLeavesDirectories, "Removing a directory leaves it empty.", ["files::remove_takes_a_tree_and_nothing_else"];
    NamesAreDecoded, "Escapes in names are decoded.", ["files::odd_names_are_kept"];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases;
    use std::collections::BTreeSet;

    #[test]
    fn every_case_is_failed_by_a_fault_and_every_name_is_known() {
        let names: BTreeSet<_> = cases().map(|case| case.name).collect();
        let seen: BTreeSet<_> = FAULTS.iter().flat_map(|info| info.seen_by).copied().collect();
        let unknown: Vec<_> = seen.difference(&names).collect();
        assert!(unknown.is_empty(), "faults name cases that are not there: {unknown:?}");
        let unfailed: Vec<_> = names.difference(&seen).collect();
        assert!(unfailed.is_empty(), "no fault fails {unfailed:?}");
        assert!(FAULTS.len() >= 20);
    }
}
