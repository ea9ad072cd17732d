//! Compiled shaders on disk (`WENGERT_CACHE`): one file for what the driver made of one text.
//!
//! A file that is damaged, foreign or too long is ignored, and written anew. Files are written under
//! names of their own and renamed, by a thread of their own, so that processes share a folder and
//! nobody waits for a disk. What cannot be written is counted and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::SystemTime;

use crate::settings;

/// What a file begins with.
const MAGIC: &[u8; 8] = b"wengertC";
/// Of the layout of files: magic, version, length of the data, key, checksum, data.
const VERSION: u32 = 1;
/// The bytes before the data
const HEAD: usize = 8 + 4 + 8 + 16 + 16;
/// The most bytes of a file.
const LARGEST: u64 = 8 << 20;
/// The most bytes of all files.
const MOST: u64 = 64 << 20;
/// Files that may wait to be written.
const WAITING: usize = 256;
/// How files end that hold a compiled shader, and those that are being written.
const ENDINGS: [&str; 2] = ["shader", "shader-part"];

/// How often what happened.
#[derive(Default)]
pub struct Counts {
    /// Files that were given to the driver
    pub read: AtomicU64,
    /// Files that were of no use
    pub ignored: AtomicU64,
    /// Files that were written
    pub written: AtomicU64,
    /// Files that could not be written
    pub failed: AtomicU64,
}

/// A folder of compiled shaders.
pub struct Cache {
    folder: PathBuf,
    /// Of adapter and driver
    device: String,
    writer: SyncSender<(PathBuf, Vec<u8>)>,
    counts: Arc<Counts>,
}

/// The folder that the setting names, if any.
pub fn folder() -> Option<PathBuf> {
    let wish = settings::CACHE.value()?;
    match wish.as_str() {
        "off" => None,
        "on" => Some(platform()?.join("wengert")),
        path => Some(path.into()),
    }
}

/// Where programs keep what they can make again.
fn platform() -> Option<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|x| !x.is_empty()).map(PathBuf::from);
    let home = || var("HOME");
    if cfg!(target_os = "macos") {
        Some(home()?.join("Library/Caches"))
    } else if cfg!(windows) {
        var("LOCALAPPDATA")
    } else {
        var("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")))
    }
}

/// 128 bits that tell texts apart and find damage; they keep nobody out (FNV-1a).
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut state = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for part in parts {
        // The lengths too, so that what parts hold is not shifted between them.
        for &byte in (part.len() as u64).to_le_bytes().iter().chain(*part) {
            state =
                (state ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    state.to_le_bytes()
}

impl Cache {
    /// The cache in a folder, of an adapter and driver. `None` where no thread could be started.
    pub fn open(folder: PathBuf, device: String) -> Option<Cache> {
        let (writer, jobs) = sync_channel(WAITING);
        let counts = Arc::<Counts>::default();
        let (own, counted) = (folder.clone(), counts.clone());
        let thread = std::thread::Builder::new().name("wengert-cache".into());
        thread.spawn(move || write_all(&own, &jobs, &counted)).ok()?;
        Some(Cache { folder, device, writer, counts })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What happened so far.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        let Counts { read, ignored, written, failed } = &*self.counts;
        [("read", read), ("ignored", ignored), ("written", written), ("failed", failed)]
            .map(|(name, count)| (name, count.load(Relaxed)))
    }

    fn key(&self, text: &str) -> [u8; 16] {
        digest(&[self.device.as_bytes(), text.as_bytes()])
    }

    fn path(&self, key: [u8; 16]) -> PathBuf {
        self.folder.join(format!("{:032x}.{}", u128::from_be_bytes(key), ENDINGS[0]))
    }

    /// What was kept of a text.
    pub fn load(&self, text: &str) -> Option<Vec<u8>> {
        let key = self.key(text);
        let bytes = match read(&self.path(key)) {
            Ok(bytes) => bytes,
            Err(problem) => {
                if problem.kind() != io::ErrorKind::NotFound {
                    self.counts.ignored.fetch_add(1, Relaxed);
                }
                return None;
            }
        };
        let data = opened(&bytes, key).map(<[u8]>::to_vec);
        let counter = if data.is_some() { &self.counts.read } else { &self.counts.ignored };
        counter.fetch_add(1, Relaxed);
        data
    }

    /// Keeps what the driver made of a text. It is written later.
    pub fn store(&self, text: &str, data: &[u8]) {
        let key = self.key(text);
        let file = sealed(data, key);
        if file.len() as u64 > LARGEST || self.writer.try_send((self.path(key), file)).is_err() {
            self.counts.failed.fetch_add(1, Relaxed);
        }
    }
}

fn sealed(data: &[u8], key: [u8; 16]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEAD + data.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&(data.len() as u64).to_le_bytes());
    file.extend_from_slice(&key);
    file.extend_from_slice(&digest(&[&key, data]));
    file.extend_from_slice(data);
    file
}

/// The data of a file of a key, if it is whole.
fn opened(file: &[u8], key: [u8; 16]) -> Option<&[u8]> {
    let (head, data) = file.split_at_checked(HEAD)?;
    (head == &sealed(data, key)[..HEAD]).then_some(data)
}

/// The bytes of a plain file of this user's, if they are not too many.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // A pipe would be waited for, and a link may lead anywhere.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    let file = options.open(path)?;
    let about = file.metadata()?;
    if !about.is_file() || about.len() > LARGEST || !is_ours(&about) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether nobody but this user could write a file: drivers trust what they are given.
#[cfg(unix)]
fn is_ours(about: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: a plain query.
    about.uid() == unsafe { libc::geteuid() } && about.mode() & 0o022 == 0
}

#[cfg(not(unix))]
fn is_ours(_: &fs::Metadata) -> bool {
    true
}

/// Writes files for ever.
fn write_all(folder: &Path, jobs: &Receiver<(PathBuf, Vec<u8>)>, counts: &Counts) {
    // The bytes there; unknown until something is written.
    let mut held: Option<u64> = None;
    let mut number = 0_u64;
    for (path, bytes) in jobs {
        number += 1;
        let part = path.with_extension(format!("{}-{number}.{}", std::process::id(), ENDINGS[1]));
        let outcome = made(folder)
            .and_then(|()| written(&part, &bytes))
            .and_then(|()| fs::rename(&part, &path));
        if outcome.is_err() {
            let _ = fs::remove_file(&part);
            counts.failed.fetch_add(1, Relaxed);
            continue;
        }
        counts.written.fetch_add(1, Relaxed);
        let now = held.map_or(u64::MAX, |held| held + bytes.len() as u64);
        held = Some(if now > MOST { shrink(folder) } else { now });
    }
}

fn made(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn written(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file: File = options.open(path)?;
    file.write_all(bytes)
}

/// Removes the oldest files until a quarter of the limit is free; the bytes that stay. Other files
/// in the folder are not touched.
fn shrink(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let own = |path: &Path| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ENDINGS.contains(&ending))
    };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| own(&entry.path()))
        .filter_map(|entry| {
            let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((about.modified().ok()?, about.len(), entry.path()))
        })
        .collect();
    files.sort();
    let mut held: u64 = files.iter().map(|file| file.1).sum();
    if held <= MOST {
        return held;
    }
    for (_, bytes, path) in files {
        if held <= MOST / 4 * 3 {
            break;
        }
        // Another process may have removed it before.
        let _ = fs::remove_file(path);
        held -= bytes;
    }
    held
}
