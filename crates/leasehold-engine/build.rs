//! Builds the guest binary and hands its path to the crate, which embeds it.
//!
//! The guest runs inside sandboxes and so has its own profile and is always static. Building it here means that every way of building the engine
//! (`cargo build`, `check`, `test`, an embedder's own workspace) yields a complete engine, and there is one file to install.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let workspace = manifest_dir.ancestors().nth(2).ok_or("the crate is not in a workspace")?.to_owned();
    for source in ["crates/leasehold-guest", "crates/envd", "crates/shellctl"] {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", workspace.join(source).join(part).display());
        }
    }
    for file in ["Cargo.lock", "Cargo.toml", ".cargo/config.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(file).display());
    }

    let target = env::var("TARGET")?;
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let target_dir = guest_target_dir(&out_dir, &target)?;
    build_guest(&workspace, &target, &target_dir)?;

    // A copy of our own: the shared directory may be rebuilt by another profile's build while this one compiles.
    let built = target_dir.join(&target).join("guest").join("leasehold-guest");
    let guest = out_dir.join("leasehold-guest");
    fs::copy(&built, &guest).map_err(|error| format!("cannot copy {}: {error}", built.display()))?;
    println!("cargo::rustc-env=LEASEHOLD_GUEST_BINARY={}", guest.display());
    Ok(())
}

/// `<target>/guest`, shared by all profiles. `OUT_DIR` is `<target>[/<triple>]/<profile>/build/<package>/out`.
fn guest_target_dir(out_dir: &Path, target: &str) -> Result<PathBuf, Box<dyn Error>> {
    let above_profile = out_dir.ancestors().nth(4).ok_or("OUT_DIR has an unknown shape")?;
    let root = if above_profile.file_name().is_some_and(|name| name == target) {
        above_profile.parent().ok_or("OUT_DIR has an unknown shape")?
    } else {
        above_profile
    };
    Ok(root.join("guest"))
}

fn build_guest(workspace: &Path, target: &str, target_dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet", "--package", "leasehold-guest", "--bin", "leasehold-guest", "--profile", "guest"])
        // The outer build has already fetched everything: the guest's dependencies are a part of the engine's.
        .arg("--offline")
        .args(["--target", target])
        .arg("--target-dir")
        .arg(target_dir);
    // What the outer build set for itself must not leak in: clippy's or a coverage tool's wrapper and flags, features, this package's variables. The
    // job server (CARGO_MAKEFLAGS) and where things are (CARGO_HOME) stay.
    for (name, _) in env::vars_os() {
        let leaks = name.to_str().is_some_and(|name| {
            matches!(
                name,
                "RUSTFLAGS" | "RUSTC_WRAPPER" | "RUSTC_WORKSPACE_WRAPPER" | "CARGO_ENCODED_RUSTFLAGS" | "CLIPPY_ARGS"
            ) || [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_CFG_",
                "CARGO_FEATURE_",
                "CARGO_BUILD_",
                "CARGO_PROFILE_",
                "CARGO_TARGET_",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
                || name.starts_with("LLVM_PROFILE")
        });
        if leaks {
            cargo.env_remove(name);
        }
    }
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    let status = cargo.status()?;
    if status.success() { Ok(()) } else { Err(format!("building the guest failed: {status}").into()) }
}
