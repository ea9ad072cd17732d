//! Flags of failures on the device, for what writes over state ([`guard`](crate::gpu::guard)).

use std::sync::Arc;

use super::device::Gpu;
use super::memory::{Buffer, Span};
use super::work::{Binding, Bindings, Command, Flags, Recording};
use crate::error::{self, Result};
use crate::gpu::guard;

/// The most flags of a job; more are made one.
const MOST_FLAGS: usize = 8;

impl Recording {
    /// The flags of all work that is needed, each once.
    fn needed(&self) -> Flags {
        let mut needed = Flags::new();
        for flag in self.needs.iter().flat_map(|job| job.work.flags()) {
            if needed.iter().all(|known| !Arc::ptr_eq(known, &flag)) {
                needed.push(flag);
            }
        }
        needed
    }
}

impl Gpu {
    /// A flag that is set if anything has failed that is recorded or needed so far; none where
    /// nothing can. Nothing that may fail is recorded behind it.
    pub fn verdict(&'static self, recording: &mut Recording) -> Result<Option<Arc<Buffer>>> {
        let slots = recording.faults.len();
        if let Some((flag, known)) = &recording.flag {
            return match *known == slots {
                true => Ok(Some(flag.clone())),
                false => Err(error::internal("a step may fail after state is written")),
            };
        }
        let needed = recording.needed();
        let flag = match (slots, needed.as_slice()) {
            (0, []) => return Ok(None),
            (0, [only]) => only.clone(),
            _ => {
                let flag = recording.buffer(self, 4)?;
                let own = recording.bound(&flag.clone().into());
                if slots > 0 {
                    let bindings = [Binding::Buffer(own.clone()), Binding::Faults];
                    let words = [0, slots as u32, 0, 0];
                    self.one(guard::VERDICT, bindings.into_iter().collect(), words, recording);
                }
                for (i, other) in needed.into_iter().enumerate() {
                    let other = recording.bound(&other.into());
                    let bindings = [Binding::Buffer(own.clone()), Binding::Buffer(other)];
                    let words = [u32::from(slots > 0 || i > 0), 0, 0, 0];
                    self.one(guard::MERGE, bindings.into_iter().collect(), words, recording);
                }
                flag
            }
        };
        recording.flag = Some((flag.clone(), slots));
        Ok(Some(flag))
    }

    /// A dispatch of one invocation. The first word of one that binds faults is a slot.
    fn one(
        &'static self,
        text: &str,
        bindings: Bindings,
        words: [u32; 4],
        recording: &mut Recording,
    ) {
        let has_slots = bindings.iter().any(|binding| matches!(binding, Binding::Faults));
        recording.commands.push(Command::Dispatch {
            pipeline: self.pipeline(text, bindings.len()),
            bindings,
            words: words.to_vec(),
            groups: [1, 1],
            slot: has_slots.then_some((0, 0)),
            timed: recording.timed.clone(),
        });
    }

    /// Decides which flags say that the job of a recording has failed.
    pub fn judge(&'static self, recording: &mut Recording) -> Result<()> {
        if recording.flag.is_none() && recording.faults.is_empty() {
            let needed = recording.needed();
            if needed.len() <= MOST_FLAGS {
                recording.flags = needed;
                return Ok(());
            }
        }
        recording.flags = self.verdict(recording)?.into_iter().collect();
        Ok(())
    }

    /// Copies a span over another of its length, unless a flag is set.
    pub fn copy_guarded(
        &'static self,
        from: &Span,
        to: &Span,
        bytes: usize,
        flag: Arc<Buffer>,
        recording: &mut Recording,
    ) {
        let copy = guard::copy(bytes);
        let spans = [from, to, &flag.into()];
        let bindings = spans.map(|span| Binding::Buffer(recording.bound(span)));
        recording.commands.push(Command::Dispatch {
            pipeline: self.pipeline(&copy.text, bindings.len()),
            bindings: bindings.into_iter().collect(),
            words: copy.words(&[], 0),
            groups: copy.groups(),
            slot: None,
            timed: recording.timed.clone(),
        });
    }
}
