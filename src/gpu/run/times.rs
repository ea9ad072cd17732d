//! The device's own times of dispatches, while somebody takes times (`watch`).
//!
//! Each timed dispatch has a pass of its own, whose first and last moment the device notes. The
//! clocks of device and host are not compared: a submission begins where the host gave it, or where
//! the one before ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::device::Gpu;
use crate::error::Result;
use crate::site::Site;
use crate::watch::{self, Event, Work};

/// Passes whose times one query set takes.
const PASSES: usize = wgpu::QUERY_SET_MAX_QUERIES as usize / 2;

/// An op or a step of a plan whose dispatches are timed.
pub struct Timed {
    /// As profiles name it
    pub name: String,
    /// The Python line
    pub site: Site,
    /// Operations on elements, where they are known
    pub flops: u64,
}

/// The clock of a device that has one.
pub struct Clock {
    /// Nanoseconds of a tick
    period: f64,
    /// Where the latest event ended, on the clock of events
    end: AtomicU64,
}

/// The timed passes of a submission.
#[derive(Default)]
pub struct Stamps {
    sets: Vec<wgpu::QuerySet>,
    timed: Vec<Arc<Timed>>,
    /// When it was given
    start: u64,
    /// Where the host reads them
    pub copy: Option<wgpu::Buffer>,
}

impl Clock {
    /// The clock of a queue, where its device has the feature.
    pub fn of(features: wgpu::Features, queue: &wgpu::Queue) -> Option<Clock> {
        let has_one = features.contains(wgpu::Features::TIMESTAMP_QUERY);
        let period = f64::from(queue.get_timestamp_period());
        has_one.then(|| Clock { period, end: AtomicU64::new(0) })
    }
}

impl Gpu {
    /// What is noted of an op or step that is recorded now (its name, its operations on elements),
    /// if somebody takes times.
    pub fn timed(&self, site: Site, what: impl FnOnce() -> (String, u64)) -> Option<Arc<Timed>> {
        if !watch::timing() {
            return None;
        }
        if self.clock.is_none() {
            watch::note_untimed(self.device().name());
            return None;
        }
        let (name, flops) = what();
        Some(Arc::new(Timed { name, site, flops }))
    }
}

impl Stamps {
    /// Where the next pass notes its times.
    pub fn next(&mut self, gpu: &Gpu, timed: &Arc<Timed>) -> (wgpu::QuerySet, u32) {
        let at = self.timed.len() % PASSES;
        if at == 0 {
            self.sets.push(gpu.raw.create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: 2 * PASSES as u32,
            }));
        }
        self.timed.push(timed.clone());
        (self.sets[self.sets.len() - 1].clone(), 2 * at as u32)
    }

    /// Has the times copied to where the host reads them.
    pub fn resolve(&mut self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) {
        use wgpu::BufferUsages as Usage;
        if self.timed.is_empty() {
            return;
        }
        let size = 16 * (self.sets.len() * PASSES) as u64;
        let own = gpu.temporary(size, Usage::QUERY_RESOLVE | Usage::COPY_SRC, false);
        for (set, k) in self.sets.iter().zip(0..) {
            let count = (self.timed.len() - k * PASSES).min(PASSES) as u32;
            encoder.resolve_query_set(set, 0..2 * count, &own, (16 * k * PASSES) as u64);
        }
        let copy = gpu.temporary(size, Usage::COPY_DST | Usage::MAP_READ, false);
        encoder.copy_buffer_to_buffer(&own, 0, &copy, 0, size);
        self.start = watch::now();
        self.copy = Some(copy);
    }

    /// Adds the events of a submission that is done: one for dispatches of one op that follow each
    /// other.
    pub fn record(self, gpu: &Gpu) -> Result<()> {
        let (Some(clock), Some(copy)) = (&gpu.clock, self.copy) else { return Ok(()) };
        let view = copy.get_mapped_range(..).map_err(|problem| gpu.broken(problem))?;
        let tick = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&view[8 * i..8 * i + 8]);
            u64::from_le_bytes(word)
        };
        let nanoseconds = |ticks: u64| (ticks as f64 * clock.period) as u64;
        let (first, start) = (tick(0), self.start.max(clock.end.load(Relaxed)));
        let mut i = 0;
        while i < self.timed.len() {
            let (begin, timed) = (i, &self.timed[i]);
            let mut duration = 0;
            while i < self.timed.len() && Arc::ptr_eq(timed, &self.timed[i]) {
                duration += nanoseconds(tick(2 * i + 1).saturating_sub(tick(2 * i)));
                i += 1;
            }
            let start = start + nanoseconds(tick(2 * begin).saturating_sub(first));
            clock.end.fetch_max(start + duration, Relaxed);
            watch::record(Event {
                work: Work::Device,
                name: timed.name.clone(),
                site: timed.site,
                start,
                duration,
                thread: watch::thread(),
                bytes: 0,
                flops: timed.flops,
                detail: gpu.device().name().into(),
            });
        }
        Ok(())
    }
}
