//! Completion queues and queue pairs.

use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::cm::Id;
use crate::device::Device;
use crate::memory::{MessageRegion, ProtectionDomain, Segment};
use crate::{Error, check, ffi, set_nonblocking};

/// Where a completion queue says that there is something to poll. Never blocks: poll its descriptor.
pub struct CompletionChannel {
    raw: NonNull<ffi::CompChannel>,
    /// After the channel, which is on it.
    device: Arc<Device>,
}

// SAFETY: used through libibverbs, whose calls are thread-safe.
unsafe impl Send for CompletionChannel {}
// SAFETY: as above.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// Opens one.
    ///
    /// # Errors
    ///
    /// What `ibv_create_comp_channel` left.
    pub fn new(device: &Arc<Device>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open as long as the device.
        let raw = unsafe { (device.api().ibv_create_comp_channel)(device.context().as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let channel = Self { raw, device: Arc::clone(device) };
        set_nonblocking(channel.fd())?;
        Ok(Arc::new(channel))
    }

    fn fd(&self) -> c_int {
        // SAFETY: the channel is alive.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: every completion queue on it holds an `Arc` of it, so none is left.
        let answer = unsafe { (self.device.api().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        debug_assert_ne!(answer, libc::EBUSY, "a completion channel was still in use");
    }
}

/// A completion queue, the only one on its channel.
pub struct CompletionQueue {
    raw: NonNull<ffi::Cq>,
    poll_cq: unsafe extern "C" fn(*mut ffi::Cq, c_int, *mut ffi::WorkCompletion) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut ffi::Cq, c_int) -> c_int,
    /// After the queue, which reports to it.
    channel: Arc<CompletionChannel>,
}

// SAFETY: polling and arming are thread-safe in every provider.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of at least `entries`, with a channel of its own.
    ///
    /// # Errors
    ///
    /// EINVAL where `entries` passes the device's `max_cqe`; what else `ibv_create_cq` left.
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, Error> {
        let channel = CompletionChannel::new(device)?;
        // SAFETY: the context is open as long as the device; only a valid context has operations.
        let operations = unsafe { &(*device.context().as_ptr()).ops };
        let (Some(poll_cq), Some(req_notify_cq)) = (operations.poll_cq, operations.req_notify_cq) else {
            return Err(Error::Call { call: "ibv_create_cq", errno: libc::EOPNOTSUPP });
        };
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are alive, and on the same device.
        let raw = unsafe {
            (device.api().ibv_create_cq)(device.context().as_ptr(), entries, ptr::null_mut(), channel.raw.as_ptr(), 0)
        };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_cq"))?;
        Ok(Arc::new(Self { raw, poll_cq, req_notify_cq, channel }))
    }

    /// Takes up to `completions.len()` completions; returns how many. Fewer than asked for means that it is empty.
    ///
    /// # Errors
    ///
    /// EIO where the device answered an error.
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, Error> {
        let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        // SAFETY: `WorkCompletion` is a transparent `ibv_wc`, and there is room for `room` of them.
        let taken = unsafe { (self.poll_cq)(self.raw.as_ptr(), room, completions.as_mut_ptr().cast()) };
        usize::try_from(taken).map_err(|_| Error::Call { call: "ibv_poll_cq", errno: libc::EIO })
    }

    /// Asks for an event on the channel at the next completion. Those already there do not count: poll once more
    /// before sleeping.
    ///
    /// # Errors
    ///
    /// What `ibv_req_notify_cq` answered.
    pub fn request_notification(&self) -> Result<(), Error> {
        // SAFETY: the queue is alive.
        check("ibv_req_notify_cq", unsafe { (self.req_notify_cq)(self.raw.as_ptr(), 0) })
    }

    /// Takes and acknowledges the channel's event; whether there was one. It may stand for several completions.
    ///
    /// There is at most one: a queue makes an event once after each [`CompletionQueue::request_notification`], and is the
    /// only one on its channel. So this is one system call for each sleep.
    ///
    /// # Errors
    ///
    /// What `ibv_get_cq_event` left.
    pub fn take_event(&self) -> Result<bool, Error> {
        let api = self.channel.device.api();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open; the call writes both.
        if unsafe { (api.ibv_get_cq_event)(self.channel.raw.as_ptr(), &mut queue, &mut context) } != 0 {
            let error = Error::last("ibv_get_cq_event");
            return if error.errno() == Some(libc::EAGAIN) { Ok(false) } else { Err(error) };
        }
        // SAFETY: this queue is the only one on the channel, so the event is its own.
        unsafe { (api.ibv_ack_cq_events)(self.raw.as_ptr(), 1) };
        Ok(true)
    }

    /// The channel, to sleep on.
    pub fn channel(&self) -> &CompletionChannel {
        &self.channel
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair that completes here holds an `Arc` of it, so none is left; all events are acked.
        let answer = unsafe { (self.channel.device.api().ibv_destroy_cq)(self.raw.as_ptr()) };
        debug_assert_ne!(answer, libc::EBUSY, "a completion queue was still in use");
    }
}

/// The end of one work request.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct WorkCompletion(ffi::WorkCompletion);

impl WorkCompletion {
    /// The number that the work request was posted with. Valid whatever the outcome.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Bytes that a successful receive got.
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// Whether it succeeded.
    pub fn is_success(&self) -> bool {
        self.0.status == ffi::WC_SUCCESS
    }

    /// Whether it was given back undone, because the queue pair had already failed or been disconnected.
    pub fn is_flushed(&self) -> bool {
        self.0.status == ffi::WC_WR_FLUSH_ERR
    }

    /// libibverbs' words for the outcome, with the device's own code.
    pub fn reason(&self) -> String {
        let words = match crate::library::api() {
            Ok(api) => {
                // SAFETY: answers a static string for any number.
                let words = unsafe { (api.ibv_wc_status_str)(self.0.status) };
                if words.is_null() {
                    "unknown".into()
                } else {
                    // SAFETY: as above.
                    unsafe { CStr::from_ptr(words) }.to_string_lossy()
                }
            }
            Err(_) => "unknown".into(),
        };
        format!("{words} (status {}, vendor {:#x})", self.0.status, self.0.vendor_err)
    }
}

/// How much may be outstanding on a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    /// Sends.
    pub sends: u32,
    /// Receives.
    pub receives: u32,
    /// Scatter-gather entries of each.
    pub segments: u32,
    /// Bytes of a message that the adapter may be handed with the work request, instead of fetching them. Where the
    /// device does not allow so many, there are none.
    pub inline_bytes: u32,
}

/// The most segments that this crate posts in one work request.
const SEGMENTS_MAX: usize = 2;

/// A reliable queue pair, with the identifier that connects it.
pub struct QueuePair {
    raw: NonNull<ffi::Qp>,
    post_send: unsafe extern "C" fn(*mut ffi::Qp, *mut ffi::SendWr, *mut *mut ffi::SendWr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut ffi::Qp, *mut ffi::RecvWr, *mut *mut ffi::RecvWr) -> c_int,
    inline_bytes: u32,
    /// After the queue pair (destroyed in `drop`), and before what it uses.
    id: Id,
    _queue: Arc<CompletionQueue>,
    /// What messages are posted from, so that it outlives them.
    messages: Arc<MessageRegion>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: posting is thread-safe in every provider; the rest is ioctls.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates one on `id`, which is bound to the device of `domain`. Sends and receives complete on `queue`. Receives
    /// may be posted at once.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], or what `rdma_create_qp` left: EINVAL or ENOMEM for depths past the device's.
    pub fn new(
        id: Id,
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        messages: &Arc<MessageRegion>,
        depths: Depths,
    ) -> Result<Self, Error> {
        let device = domain.device();
        if !device.has(&id) || device.context() != queue.channel.device.context() {
            return Err(Error::OtherDevice);
        }
        // SAFETY: the context is open as long as the device.
        let operations = unsafe { &(*device.context().as_ptr()).ops };
        let (Some(post_send), Some(post_recv)) = (operations.post_send, operations.post_recv) else {
            return Err(Error::Call { call: "rdma_create_qp", errno: libc::EOPNOTSUPP });
        };
        let mut attributes = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: ffi::QpCap {
                max_send_wr: depths.sends,
                max_recv_wr: depths.receives,
                max_send_sge: depths.segments,
                max_recv_sge: depths.segments,
                max_inline_data: depths.inline_bytes,
            },
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        let create = |attributes: &mut ffi::QpInitAttr| {
            // SAFETY: the identifier is bound to the domain's device, and everything named is alive and kept by `self`.
            let answer = unsafe { (id.api().rdma_create_qp)(id.raw.as_ptr(), domain.raw(), attributes) };
            check("rdma_create_qp", answer)
        };
        // The call writes what it granted into the attributes, and devices do not tell before how much they inline.
        let mut granted = depths.inline_bytes;
        if let Err(error) = create(&mut attributes) {
            if depths.inline_bytes == 0 {
                return Err(error);
            }
            granted = 0;
            attributes.cap = ffi::QpCap {
                max_send_wr: depths.sends,
                max_recv_wr: depths.receives,
                max_send_sge: depths.segments,
                max_recv_sge: depths.segments,
                max_inline_data: 0,
            };
            create(&mut attributes)?;
        }
        // SAFETY: the identifier is alive, its queue pair was just created.
        let raw = NonNull::new(unsafe { (*id.raw.as_ptr()).qp }).ok_or_else(|| Error::last("rdma_create_qp"))?;
        Ok(Self {
            raw,
            post_send,
            post_recv,
            inline_bytes: granted,
            id,
            _queue: Arc::clone(queue),
            messages: Arc::clone(messages),
            _domain: Arc::clone(domain),
        })
    }

    /// The identifier, to connect, accept and disconnect by.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// The region that its messages are posted from.
    pub fn messages(&self) -> &MessageRegion {
        &self.messages
    }

    /// Moves the queue pair to its error state: posted work comes back flushed.
    ///
    /// # Errors
    ///
    /// What `ibv_modify_qp` answered.
    pub fn fail(&self) -> Result<(), Error> {
        let mut attributes = ffi::QpAttr { qp_state: ffi::QPS_ERR, rest: [0; 35] };
        // SAFETY: the queue pair is alive; the mask says that the state alone is set.
        let answer = unsafe { (self.id.api().ibv_modify_qp)(self.raw.as_ptr(), &mut attributes, ffi::QP_STATE) };
        check("ibv_modify_qp", answer)
    }

    /// Sends the first `length` bytes of a slot of the queue pair's message region.
    ///
    /// # Errors
    ///
    /// What `ibv_post_send` answered: ENOMEM when the queue is full.
    pub fn send_message(&self, work_id: u64, slot: u32, length: u32) -> Result<(), Error> {
        // SAFETY: the slot lies in the region that `self` keeps alive, and is reached by copies only.
        unsafe { self.send(work_id, &[self.messages.segment(slot, length)]) }
    }

    /// As [`QueuePair::send_message`], inline where it is short enough for that. Without `signalled` its completion is
    /// told only if it fails; then a later send that is signalled tells of this one as well, and until that has been
    /// polled this one takes its place in the queue.
    ///
    /// # Errors
    ///
    /// What `ibv_post_send` answered: ENOMEM when the queue is full.
    pub fn send_message_inline(&self, work_id: u64, slot: u32, length: u32, signalled: bool) -> Result<(), Error> {
        let signalled = if signalled { ffi::SEND_SIGNALED } else { 0 };
        let inline = if length <= self.inline_bytes { ffi::SEND_INLINE } else { 0 };
        // SAFETY: as in `send_message`.
        unsafe { self.post(work_id, &[self.messages.segment(slot, length)], signalled | inline) }
    }

    /// Posts a whole slot of the queue pair's message region to receive into.
    ///
    /// # Errors
    ///
    /// What `ibv_post_recv` answered: ENOMEM when the queue is full.
    pub fn receive_message(&self, work_id: u64, slot: u32) -> Result<(), Error> {
        let length = u32::try_from(self.messages.slot_bytes()).unwrap_or(u32::MAX);
        // SAFETY: as in `send_message`.
        unsafe { self.receive(work_id, &[self.messages.segment(slot, length)]) }
    }

    /// Sends 1 to 2 segments as one message.
    ///
    /// # Safety
    ///
    /// Until its completion has been polled, or this queue pair dropped, the segments' memory stays mapped, and nobody
    /// writes to it.
    ///
    /// # Errors
    ///
    /// What `ibv_post_send` answered: ENOMEM when the queue is full. Nothing was posted then.
    pub unsafe fn send(&self, work_id: u64, segments: &[Segment]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.post(work_id, segments, ffi::SEND_SIGNALED) }
    }

    /// # Safety
    ///
    /// As [`QueuePair::send`].
    unsafe fn post(&self, work_id: u64, segments: &[Segment], flags: std::ffi::c_uint) -> Result<(), Error> {
        let mut list = scatter_gather(segments);
        let mut request = ffi::SendWr {
            wr_id: work_id,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: segments.len() as c_int,
            opcode: ffi::WR_SEND,
            send_flags: flags,
            imm_data: 0,
            unions: [0; 11],
        };
        let mut refused = ptr::null_mut();
        // SAFETY: the request and its list outlive the call, which copies them; the memory is the caller's promise.
        check("ibv_post_send", unsafe { (self.post_send)(self.raw.as_ptr(), &mut request, &mut refused) })
    }

    /// Posts 1 to 2 segments to receive one message into, filled in order.
    ///
    /// # Safety
    ///
    /// Until its completion has been polled, or this queue pair dropped, the segments' memory stays mapped, and nobody
    /// else reads or writes it.
    ///
    /// # Errors
    ///
    /// What `ibv_post_recv` answered: ENOMEM when the queue is full. Nothing was posted then.
    pub unsafe fn receive(&self, work_id: u64, segments: &[Segment]) -> Result<(), Error> {
        let mut list = scatter_gather(segments);
        let mut request = ffi::RecvWr {
            wr_id: work_id,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: segments.len() as c_int,
        };
        let mut refused = ptr::null_mut();
        // SAFETY: as in `send`.
        check("ibv_post_recv", unsafe { (self.post_recv)(self.raw.as_ptr(), &mut request, &mut refused) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Not while an event is read on its channel: that may be moving this queue pair's state.
        let _reading = self.id.channel.lock();
        // SAFETY: destroyed once, before its identifier; from here on the device touches none of its memory.
        unsafe { (self.id.api().rdma_destroy_qp)(self.id.raw.as_ptr()) };
    }
}

fn scatter_gather(segments: &[Segment]) -> [ffi::Sge; SEGMENTS_MAX] {
    assert!(!segments.is_empty() && segments.len() <= SEGMENTS_MAX, "1 to {SEGMENTS_MAX} segments");
    let mut list = [ffi::Sge::default(); SEGMENTS_MAX];
    for (entry, segment) in list.iter_mut().zip(segments) {
        *entry = ffi::Sge { addr: segment.address, length: segment.length, lkey: segment.local_key };
    }
    list
}
