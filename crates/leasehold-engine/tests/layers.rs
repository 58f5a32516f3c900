//! Snapshots of real sandboxes, and sandboxes started from them.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod support;

use std::fs;

use leasehold_engine::ErrorKind;
use support::{Machine, User};

#[test]
fn a_sandbox_from_a_snapshot_has_the_same_files_and_owners() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.sh(
        "i1",
        User::User,
        "mkdir -p ~/d/e && echo content > ~/d/e/f && ln ~/d/e/f ~/d/g && ln -s nowhere ~/d/h && chmod 640 ~/d/e/f",
    );
    machine.sh(
        "i1",
        User::Root,
        "echo root > /srv/r && mkfifo /srv/p && truncate -s 1G /srv/sparse && mkdir -m 1777 /srv/t",
    );
    let list = "cd / && find home workspace srv root etc -printf '%p %y %m %U:%G %s %n %l %T@\\n' | sort";
    let before = machine.sh("i1", User::Root, list);
    machine.engine().pause("i1").unwrap();
    let layer = machine.engine().snapshot("i1").unwrap();
    machine.engine().resume("i1").unwrap();
    assert_eq!(machine.sh("i1", User::Root, list), before, "the original goes on");
    machine.start("i2", std::slice::from_ref(&layer));
    let etc =
        |text: &str| text.lines().filter(|line| !line.starts_with("etc/host")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(etc(&machine.sh("i2", User::Root, list)), etc(&before));
    assert_eq!(machine.sh("i2", User::User, "cat ~/d/g; hostname"), "content\ni2\n");
    let archive = machine.data.join("layers").join(format!("{}.tar", layer.hex()));
    assert!(fs::metadata(&archive).unwrap().len() < 1 << 20, "a hole is stored as a hole");
    let listed = std::process::Command::new("tar").arg("tf").arg(&archive).output().unwrap();
    assert!(
        listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains("home/user/d/e/f"),
        "other tools read it"
    );
}

#[test]
fn what_was_deleted_or_replaced_stays_so() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.sh("i1", User::User, "cd /workspace && mkdir -p gone kept/below replaced emptied && touch gone/a kept/below/b replaced/old emptied/c file");
    machine.engine().stop("i1", None).unwrap();
    let one = machine.engine().snapshot("i1").unwrap();

    machine.start("i2", std::slice::from_ref(&one));
    machine.sh("i2", User::User, "cd /workspace && rm -r gone file emptied/c && rm -r replaced && mkdir replaced && touch replaced/new && rm ~/.bashrc");
    let list = "cd / && find workspace home/user | sort";
    let expected = machine.sh("i2", User::User, list);
    machine.engine().stop("i2", None).unwrap();
    let two = machine.engine().snapshot("i2").unwrap();

    machine.start("i3", &[one.clone(), two.clone()]);
    assert_eq!(machine.sh("i3", User::User, list), expected);
    assert!(!expected.contains("old") && !expected.contains("gone") && !expected.contains(".bashrc"), "{expected}");
    machine.sh("i3", User::User, "cd /workspace && mkdir gone && touch gone/again");
    machine.engine().stop("i3", None).unwrap();
    let three = machine.engine().snapshot("i3").unwrap();
    machine.start("i4", &[one, two, three]);
    assert_eq!(
        machine.sh("i4", User::User, "ls /workspace/gone"),
        "again\n",
        "a directory made anew does not show what was below"
    );
}

#[test]
fn the_same_files_are_the_same_layer() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.sh("i1", User::User, "echo x > ~/a");
    machine.engine().stop("i1", None).unwrap();
    let one = machine.engine().snapshot("i1").unwrap();
    assert_eq!(machine.engine().snapshot("i1").unwrap(), one);
    machine.start("i1", &[]);
    machine.engine().pause("i1").unwrap();
    assert_eq!(machine.engine().snapshot("i1").unwrap(), one, "a boot changes nothing");
}

#[test]
fn many_layers_can_be_stacked() {
    let machine = Machine::new();
    let mut layers = Vec::new();
    for number in 0..60 {
        let id = format!("i{number}");
        // One by one would take a minute; the files of a sandbox that never ran are its layer just as well.
        let upper = machine.data.join("sandboxes").join(&id).join("upper");
        fs::create_dir_all(&upper).unwrap();
        fs::write(upper.join(format!("layer{number}")), "x").unwrap();
        for path in [&upper, &upper.join(format!("layer{number}"))] {
            std::os::unix::fs::chown(path, Some(0x7000_0000), Some(0x7000_0000)).unwrap();
        }
        layers.push(machine.engine().snapshot(&id).unwrap());
    }
    machine.start("all", &layers);
    assert_eq!(machine.sh("all", User::User, "ls / | grep -c ^layer"), "60\n");
}

#[test]
fn deleted_layers_are_gone_and_unknown_sandboxes_have_none() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.engine().stop("i1", None).unwrap();
    let layer = machine.engine().snapshot("i1").unwrap();
    machine.start("i2", std::slice::from_ref(&layer));
    machine.engine().stop("i2", None).unwrap();
    for _ in 0..2 {
        machine.engine().delete_layer(&layer).unwrap();
    }
    let text = layer.hex().to_owned();
    for directory in ["layers", "cache"] {
        let listing = fs::read_dir(machine.data.join(directory)).unwrap();
        assert!(
            listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()).all(|name| !name.contains(&text))
        );
    }
    let error = machine.engine().start(&support::spec("i3", &[layer])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(machine.engine().snapshot("i9").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_sandbox_in_which_nothing_was_done_has_an_empty_layer() {
    let machine = Machine::new();
    machine.start("i1", &[]);
    machine.engine().pause("i1").unwrap();
    let layer = machine.engine().snapshot("i1").unwrap();
    let archive = fs::read(machine.data.join("layers").join(format!("{}.tar", layer.hex()))).unwrap();
    assert_eq!(archive.len(), 1536, "one member, the root, and the end mark");
}
