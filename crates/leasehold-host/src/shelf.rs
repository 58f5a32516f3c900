//! The shelf: stored snapshots, and which layers are still needed.
//!
//! A layer is needed by every snapshot and every sandbox that has it in its list. It is deleted when the last of them goes,
//! so deleting a snapshot never harms what was made from it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::{DEFAULT_TAG, NAMESPACE, TemplateRef};
use crate::record::Snapshot;

#[derive(Debug, Default)]
struct Content {
    snapshots: BTreeMap<String, Snapshot>,
    needed: HashMap<String, usize>,
}

/// Snapshots in memory; the ledger has the durable copy.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    content: Mutex<Content>,
    /// Held shared while a layer is made and recorded, alone while unneeded layers are deleted: two layers with the same
    /// content are one file.
    pub(crate) layers: tokio::sync::RwLock<()>,
}

impl Content {
    fn pin(&mut self, layers: &[String]) {
        for layer in layers {
            *self.needed.entry(layer.clone()).or_default() += 1;
        }
    }

    fn unpin(&mut self, layers: &[String]) -> Vec<String> {
        let mut unneeded = Vec::new();
        for layer in layers {
            if let Some(count) = self.needed.get_mut(layer) {
                *count -= 1;
                if *count == 0 {
                    self.needed.remove(layer);
                    unneeded.push(layer.clone());
                }
            }
        }
        unneeded
    }
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds what a reference means and pins its layers for a new sandbox.
    pub(crate) fn pin_layers_of(&self, reference: &TemplateRef) -> Option<Vec<String>> {
        let mut content = self.lock();
        let layers = find(&content, reference)?.layers.clone();
        content.pin(&layers);
        Some(layers)
    }

    /// Pins layers of something that exists already.
    pub(crate) fn pin(&self, layers: &[String]) {
        self.lock().pin(layers);
    }

    /// Gives layers back; those that nobody needs any more are returned.
    pub(crate) fn unpin(&self, layers: &[String]) -> Vec<String> {
        self.lock().unpin(layers)
    }

    pub(crate) fn is_needed(&self, layer: &str) -> bool {
        self.lock().needed.contains_key(layer)
    }

    pub(crate) fn find(&self, reference: &TemplateRef) -> Option<Snapshot> {
        find(&self.lock(), reference).cloned()
    }

    /// Puts a snapshot on the shelf. One that had the same name before is taken off and returned.
    pub(crate) fn put(&self, snapshot: Snapshot) -> Option<Snapshot> {
        let mut content = self.lock();
        let replaced = snapshot.name.as_ref().and_then(|name| {
            let id = content.snapshots.values().find(|old| old.name.as_ref() == Some(name))?.id.clone();
            content.snapshots.remove(&id)
        });
        content.pin(&snapshot.layers);
        content.snapshots.insert(snapshot.id.clone(), snapshot);
        replaced
    }

    /// Takes a snapshot off the shelf; its layers stay pinned until [`Self::unpin`].
    pub(crate) fn take(&self, id: &str) -> Option<Snapshot> {
        self.lock().snapshots.remove(id)
    }

    /// All, newest first.
    pub(crate) fn list(&self) -> Vec<Snapshot> {
        let mut all: Vec<_> = self.lock().snapshots.values().cloned().collect();
        all.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        all
    }
}

fn find<'a>(content: &'a Content, reference: &TemplateRef) -> Option<&'a Snapshot> {
    if reference.namespace.as_deref().is_some_and(|namespace| namespace != NAMESPACE) {
        return None;
    }
    let named = content.snapshots.values().find(|snapshot| {
        snapshot.name.as_ref().is_some_and(|(name, tag)| *name == reference.name && *tag == reference.tag)
    });
    let unnamed = || {
        let snapshot = content.snapshots.get(&reference.name)?;
        (snapshot.name.is_none() && reference.namespace.is_none() && reference.tag == DEFAULT_TAG).then_some(snapshot)
    };
    named.or_else(unnamed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wall::Wall;

    fn snapshot(id: &str, name: Option<&str>, layers: &[&str]) -> Snapshot {
        Snapshot {
            id: id.to_owned(),
            source: "i1".to_owned(),
            created_at: Wall::from_micros(1),
            layers: layers.iter().map(|&layer| layer.to_owned()).collect(),
            name: name.map(|name| (name.to_owned(), "default".to_owned())),
        }
    }

    fn reference(text: &str) -> TemplateRef {
        TemplateRef::parse(text).expect("a reference")
    }

    #[test]
    fn every_public_id_finds_its_snapshot() {
        let shelf = Shelf::default();
        for snapshot in [snapshot("x1", None, &["a"]), snapshot("x2", Some("home"), &["a", "b"])] {
            shelf.put(snapshot.clone());
            assert_eq!(shelf.find(&reference(&snapshot.public_id())), Some(snapshot));
        }
        assert!(shelf.find(&reference("home")).is_some());
        assert!(shelf.find(&reference("other/home")).is_none());
        assert!(shelf.find(&reference("x1:v2")).is_none());
    }

    #[test]
    fn a_layer_is_unneeded_only_when_the_last_user_is_gone() {
        let shelf = Shelf::default();
        shelf.put(snapshot("x1", None, &["a"]));
        let pinned = shelf.pin_layers_of(&reference("x1")).expect("is there");
        let taken = shelf.take("x1").expect("is there");
        assert!(shelf.unpin(&taken.layers).is_empty());
        assert!(shelf.is_needed("a"));
        assert_eq!(shelf.unpin(&pinned), ["a"]);
        assert!(!shelf.is_needed("a"));
    }

    #[test]
    fn a_name_means_the_newest_snapshot_that_got_it() {
        let shelf = Shelf::default();
        shelf.put(snapshot("x1", Some("home"), &["a"]));
        let replaced = shelf.put(snapshot("x2", Some("home"), &["b"])).expect("had the name");
        assert_eq!(replaced.id, "x1");
        assert_eq!(shelf.find(&reference("leasehold/home")).expect("is there").id, "x2");
    }
}
