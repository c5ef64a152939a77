//! Passes signals to this process on as events.

#![allow(unsafe_code, reason = "signals are looked at and set")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGXFSZ};
use signal_hook::iterator::Signals;

/// How soon a repeated signal counts as the same signal. timeout(1) sends its signal to the command and to the process
/// group that it is in. A user who asks twice takes longer.
const SAME_WITHIN: Duration = Duration::from_millis(200);

/// Number of requests after which the process does not wait for an orderly end.
const ASKED_MAX: u32 = 3;

/// Signals that come closer together than this are one request: a logout may send three.
const REQUEST_APART: Duration = Duration::from_millis(500);

/// How long the process goes on after a signal that no handler takes any more. Its last output waits for a
/// reader at most half as long.
const LAST_MAX: Duration = Duration::from_secs(1);

/// The last signal that has asked this process to end; 0 if none has. The signal handler itself sets this, because
/// possibly no thread passes signals on.
static ASKED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns how long ago this function first found that a signal had asked the process to end; `None` if none has.
pub(crate) fn since_end() -> Option<Duration> {
    static SEEN: OnceLock<Instant> = OnceLock::new();
    (ASKED.load(Ordering::Relaxed) > 0).then(|| SEEN.get_or_init(Instant::now).elapsed())
}

/// Returns the last signal that has asked the process to end, if any has.
pub(crate) fn last_asked() -> Option<u8> {
    u8::try_from(ASKED.load(Ordering::Relaxed)).ok().filter(|&number| number > 0)
}

/// Function that handles a signal. Returns false once nothing waits for signals.
type Taker = Arc<dyn Fn(i32) -> bool + Send + Sync>;

/// All handlers that take signals, by number. One job may run within another, as each copy of `--watch` does.
static TAKERS: Mutex<Vec<(u64, Taker)>> = Mutex::new(Vec::new());

fn takers() -> MutexGuard<'static, Vec<(u64, Taker)>> {
    TAKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any handler takes the signal.
fn is_taken(signal: i32) -> bool {
    // The lock is released first, because a handler may cause a `Forwarding` to be dropped.
    let all: Vec<Taker> = takers().iter().map(|(_, taker)| Arc::clone(taker)).collect();
    all.iter().filter(|take| take(signal)).count() > 0
}

/// Passes signals on as long as this value is kept. A signal that no handler takes has its default effect on the
/// process, one second later.
#[must_use]
pub(crate) struct Forwarding(u64);

impl Forwarding {
    /// Passes signals on until the process ends, or no handler takes them any more.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        takers().retain(|(number, _)| *number != self.0);
    }
}

/// From now on, passes signals that end or stop the process to `handle`, on a separate thread. `handle` returns false
/// once nothing waits for signals. `is_launched`: whether the process that started this one ignores SIGINT.
///
/// # Errors
///
/// Fails if no handler or no thread can be set up.
pub(crate) fn forward(
    is_launched: bool,
    handle: impl Fn(i32) -> bool + Send + Sync + 'static,
) -> std::io::Result<Forwarding> {
    static COUNT: Mutex<u64> = Mutex::new(0);
    let mut count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    if *count == 0 {
        listen(is_launched)?;
    }
    *count += 1;
    takers().push((*count, Arc::new(handle)));
    Ok(Forwarding(*count))
}

/// Whether a signal ends this process if it is process 1 of a container. False once [`listen`] handles signals. The
/// kernel withholds from process 1 any signal for which that process has no handler.
static ENDS_FIRST: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// If this is process 1, makes signals end the process as they would end any other.
pub(crate) fn end_first() {
    if std::process::id() != 1 {
        return;
    }
    for signal in not_ignored(vec![SIGINT, SIGQUIT, SIGTERM, SIGHUP]) {
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&ENDS_FIRST));
    }
}

/// Starts the thread that passes signals on.
fn listen(is_launched: bool) -> std::io::Result<()> {
    // Signals that were ignored when this process was started stay ignored, as nohup and background
    // jobs of scripts require.
    let mut handled = not_ignored(vec![SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGTSTP]);
    if is_launched && !handled.contains(&SIGINT) {
        handled.push(SIGINT);
    }
    for &signal in handled.iter().filter(|signal| **signal != SIGTSTP) {
        signal_hook::flag::register_usize(signal, Arc::clone(&ASKED), signal as usize)?;
    }
    let mut signals = Signals::new(handled)?;
    ENDS_FIRST.store(false, Ordering::Relaxed);
    std::thread::Builder::new().name("signals".to_owned()).stack_size(64 << 10).spawn(move || {
        let (mut last, mut asked) = (None, Requests::default());
        for signal in signals.forever() {
            if !is_new(&mut last, signal, Instant::now()) {
                continue;
            }
            // After enough requests, the code that should react to signals is taken to be stuck.
            let is_in_time = signal == SIGTSTP || is_launched || !asked.are_enough(Instant::now());
            if is_in_time && is_taken(signal) {
                continue;
            }
            if is_in_time && signal != SIGTSTP {
                // Either everything is done except the final message, or the next job is about to begin.
                std::thread::sleep(LAST_MAX);
                if is_taken(signal) {
                    continue;
                }
            }
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

/// Ends this process by SIGINT if that is the signal `number`, which has ended its work. A shell ends a loop or a
/// script only if a command was killed by SIGINT, and not if it exits with 130. Everything must be cleaned up and
/// reported before. Returns if no signal has asked this process to end, or if it ignores SIGINT or is process 1 of a
/// container, which SIGINT does not end.
pub(crate) fn end_by(number: u8) {
    use std::io::Write as _;
    let is_asked = i32::from(number) == SIGINT && since_end().is_some() && !not_ignored(vec![SIGINT]).is_empty();
    if !is_asked || std::process::id() == 1 {
        return;
    }
    // The signal leaves no time for that.
    let _ = std::io::stdout().flush();
    let _ = signal_hook::low_level::emulate_default_handler(SIGINT);
}

/// How often this process was asked to end.
#[derive(Default)]
struct Requests {
    count: u32,
    last: Option<Instant>,
}

impl Requests {
    /// Counts a signal that asks the process to end. Returns whether there have been enough requests.
    fn are_enough(&mut self, now: Instant) -> bool {
        if self.last.is_none_or(|last| now.duration_since(last) >= REQUEST_APART) {
            self.last = Some(now);
            self.count += 1;
        }
        self.count >= ASKED_MAX
    }
}

/// Whether a signal is not a repetition of the one just passed on. If so, it is stored as `last`.
fn is_new(last: &mut Option<(i32, Instant)>, signal: i32, now: Instant) -> bool {
    let is_same = last.is_some_and(|(same, when)| same == signal && now.duration_since(when) < SAME_WITHIN);
    if !is_same {
        *last = Some((signal, now));
    }
    !is_same
}

/// Returns those of `signals` that this process does not ignore.
pub(crate) fn not_ignored(mut signals: Vec<i32>) -> Vec<i32> {
    signals.retain(|&signal| {
        // SAFETY: all zeros is a valid `sigaction`. The call changes nothing, and writes to a structure that lives
        // throughout it.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            action
        };
        action.sa_sigaction != libc::SIG_IGN
    });
    signals
}

/// Makes the kernel keep the exit status of each child until this process has read it. If this process was started with
/// SIGCHLD ignored, as by some launchers and daemons, the status would be lost. Must be called before there are other
/// threads.
pub(crate) fn hear_of_children() {
    // SAFETY: this replaces no handler, and no other thread relies on the old setting.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Lets a write that exceeds the file size limit fail, and report that itself, instead of ending this process. A
/// program that is started does not inherit the handler, but would inherit that the signal is ignored.
pub(crate) fn outlive_long_files() {
    for signal in not_ignored(vec![SIGXFSZ]) {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
}

/// Stops this process, as ^Z on a terminal does, until it is continued. If several threads ask at
/// once, it stops only once.
pub(crate) fn stop_here() {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() > Duration::from_secs(1)) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP);
        *last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGPIPE is one that the runtime of Rust ignores.
    #[test]
    fn ignored_signals_are_known_without_proc() {
        use crate::fs::close::tests::where_calls_fail;

        let known = where_calls_fail(&[libc::SYS_openat], libc::ENOENT, || not_ignored(vec![libc::SIGPIPE, SIGXFSZ]));
        assert_eq!(known, [SIGXFSZ]);
    }

    #[test]
    fn signals_of_one_event_are_one_request() {
        let (mut asked, begin) = (Requests::default(), Instant::now());
        let mut are_enough = |ms| asked.are_enough(begin + Duration::from_millis(ms));
        assert!([0, 5, 40, 400].into_iter().all(|ms| !are_enough(ms)), "a logout");
        assert!(!are_enough(600) && !are_enough(900) && are_enough(1100));
    }

    #[test]
    fn a_signal_that_comes_twice_at_once_is_one() {
        let (mut last, begin) = (None, Instant::now());
        let mut is_new = |signal, ms| is_new(&mut last, signal, begin + Duration::from_millis(ms));
        assert!(is_new(SIGTERM, 0), "the first");
        assert!(!is_new(SIGTERM, 1) && !is_new(SIGTERM, 150), "the same");
        assert!(is_new(SIGINT, 160), "another");
        assert!(!is_new(SIGINT, 300) && is_new(SIGINT, 400), "one that is held down is asked twice");
    }
}
