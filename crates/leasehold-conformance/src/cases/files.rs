//! Files without a command.

use std::sync::Arc;

use anyhow::{bail, ensure};
use bytes::Bytes;
use leasehold::{ErrorKind, FileKind, FilesExt as _};

use super::{area, needs};
use crate::Stage;
use crate::stage::refused;

/// The most bytes a case reads of one file.
const LIMIT: usize = 4 << 20;

area!("files" {
    /// Every byte value comes back as it was written, and so does a file of nothing.
    all_bytes_round_trip: needs::files,
    /// A file of two megabytes comes back as it was written.
    a_large_file_round_trips: needs::files,
    /// A written file is there for the next command, which may change it, and the other way round.
    files_and_commands_see_each_other: needs::files,
    /// A write replaces the whole file and makes the parents it needs.
    a_write_replaces_and_makes_parents: needs::files,
    /// A list has the direct children with their kinds, hidden ones too, and nothing else.
    a_list_has_the_direct_children: needs::files,
    /// A path that isn't there is not found, by every call that needs it.
    a_missing_path_is_not_found: needs::files,
    /// A path of the wrong type is refused as a conflict or, where the provider doesn't tell the two apart, as invalid input.
    the_wrong_type_is_refused: needs::files,
    /// Making a directory says whether it is new.
    make_dir_says_whether_it_is_new: needs::files,
    /// Removing a directory takes all below and nothing beside it.
    remove_takes_a_tree_and_nothing_else: needs::files,
    /// Names with blanks, quotes, escapes and other alphabets are names like others.
    odd_names_are_kept: needs::files,
});

async fn all_bytes_round_trip(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    let every: Bytes = (0..=u8::MAX).chain((0..=u8::MAX).rev()).collect();
    let path = format!("{}/bytes", lease.workspace());
    files.write_all(&path, every.clone()).await?;
    ensure!(files.read_all(&path, LIMIT).await? == every, "the bytes changed");
    files.write_all(&path, Bytes::new()).await?;
    ensure!(files.read_all(&path, LIMIT).await?.is_empty(), "the empty file has bytes");
    lease.release().await
}

async fn a_large_file_round_trips(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    // A pattern whose period is prime to every buffer size, so that a piece lost or doubled shows.
    let large: Bytes = (0..2_000_003_u32).map(|index| (index % 251).to_le_bytes()[0]).collect();
    let path = format!("{}/large", lease.home());
    files.write_all(&path, large.clone()).await?;
    let read = files.read_all(&path, LIMIT).await?;
    ensure!(read == large, "{} bytes came back of {}", read.len(), large.len());
    lease.release().await
}

async fn files_and_commands_see_each_other(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    let path = format!("{}/shared", lease.workspace());
    files.write_all(&path, Bytes::from_static(b"from files\n")).await?;
    ensure!(
        lease.ok("cat shared; echo from command >> shared").await? == "from files",
        "the command sees another file"
    );
    let seen = files.read_all(&path, LIMIT).await?;
    ensure!(seen == "from files\nfrom command\n", "files see {seen:?}");
    lease.release().await
}

async fn a_write_replaces_and_makes_parents(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    let path = format!("{}/new/deep/file", lease.home());
    files.write_all(&path, Bytes::from_static(b"a long first text")).await?;
    files.write_all(&path, Bytes::from_static(b"short")).await?;
    let seen = files.read_all(&path, LIMIT).await?;
    ensure!(seen == "short", "the file has {seen:?}");
    lease.release().await
}

async fn a_list_has_the_direct_children(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    lease.ok("mkdir d d/sub; printf 12345 > d/file; echo > d/.hidden; ln -s file d/link; echo > d/sub/below").await?;
    let path = format!("{}/d", lease.workspace());
    let mut listed = lease.lease().files().list(&path).await?;
    listed.sort_by(|one, two| one.name.cmp(&two.name));
    let seen: Vec<_> = listed.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
    let expected =
        [(".hidden", FileKind::File), ("file", FileKind::File), ("link", FileKind::Symlink), ("sub", FileKind::Dir)];
    ensure!(seen == expected, "listed {seen:?}");
    for entry in &listed {
        ensure!(entry.path == format!("{path}/{}", entry.name), "{} has the path {}", entry.name, entry.path);
    }
    let size = listed.iter().find(|entry| entry.name == "file").and_then(|entry| entry.size_bytes);
    ensure!(size.is_none_or(|size| size == 5), "the size is {size:?}, expected 5 or nothing");
    lease.ok("mkdir none").await?;
    let none = lease.lease().files().list(&format!("{}/none", lease.workspace())).await?;
    ensure!(none.is_empty(), "the empty directory has {none:?}");
    lease.release().await
}

async fn a_missing_path_is_not_found(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    let path = format!("{}/missing", lease.workspace());
    ensure!(!files.exists(&path).await?, "the missing path exists");
    ensure!(files.exists(lease.workspace()).await?, "the workspace does not exist");
    refused("read", files.read_all(&path, LIMIT).await, ErrorKind::NotFound)?;
    refused("list", files.list(&path).await, ErrorKind::NotFound)?;
    ensure!(!files.exists(&path).await?, "looking made it");
    lease.release().await
}

async fn the_wrong_type_is_refused(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    lease.ok("echo > file; mkdir dir").await?;
    let listed = files.list(&format!("{}/file", lease.workspace())).await.map(drop);
    let read = files.read_all(&format!("{}/dir", lease.workspace()), LIMIT).await.map(drop);
    for (what, result) in [("list of a file", listed), ("read of a directory", read)] {
        match result.map_err(|error| error.kind()) {
            Err(ErrorKind::Conflict | ErrorKind::InvalidInput) => {}
            other => bail!("{what} gave {other:?}"),
        }
    }
    lease.release().await
}

async fn make_dir_says_whether_it_is_new(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    let path = format!("{}/one/two", lease.workspace());
    ensure!(files.make_dir(&path).await?, "the new directory is said to have been there");
    lease.ok("echo > one/two/file").await?;
    ensure!(!files.make_dir(&path).await?, "the old directory is said to be new");
    lease.ok("test -f one/two/file").await?;
    lease.release().await
}

async fn remove_takes_a_tree_and_nothing_else(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    lease
        .ok("mkdir -p gone/deep stays; echo > gone/deep/file; echo kept > stays/file; ln -s ../stays gone/link")
        .await?;
    files.remove(&format!("{}/gone", lease.workspace())).await?;
    ensure!(lease.ok("ls -A; cat stays/file").await? == "stays\nkept", "the wrong things are gone");
    files.remove(&format!("{}/stays/file", lease.workspace())).await?;
    ensure!(lease.ok("ls -A stays").await?.is_empty(), "the file is still there");
    lease.release().await
}

async fn odd_names_are_kept(stage: Arc<Stage>) -> anyhow::Result<()> {
    let binding = stage.create().await?;
    let lease = stage.acquire(&binding).await?;
    let files = lease.lease().files();
    let mut names =
        ["a b", "a%2Fb", "a#b?c", "it's \"quoted\"", "$(echo no)", "über-日本-🦀", "-n", "a+b&c=d", "back\\slash"];
    names.sort_unstable();
    for name in names {
        files.write_all(&format!("{}/odd/{name}", lease.workspace()), Bytes::from(name.to_owned())).await?;
    }
    let listed = lease.ok("cd odd && LC_ALL=C ls -A1 -N --").await?;
    ensure!(listed.lines().eq(names), "the directory has {listed:?}");
    for name in names {
        let seen = files.read_all(&format!("{}/odd/{name}", lease.workspace()), LIMIT).await?;
        ensure!(seen == name, "{name:?} contains {seen:?}");
    }
    lease.release().await
}
