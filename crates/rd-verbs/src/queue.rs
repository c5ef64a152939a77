//! Completion queues and queue pairs.

use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::cm::Id;
use crate::device::Device;
use crate::library::{Api, api};
use crate::memory::{MessageRegion, ProtectionDomain, Segment};
use crate::{Error, check, ffi, set_nonblocking};

/// A channel on which a completion queue announces completions. Reading never blocks: poll its descriptor.
struct CompletionChannel {
    raw: NonNull<ffi::CompChannel>,
    /// Dropped after the channel, which is on it.
    device: Arc<Device>,
}

impl CompletionChannel {
    /// Opens a channel.
    ///
    /// # Errors
    ///
    /// The error of `ibv_create_comp_channel`.
    fn new(device: &Arc<Device>) -> Result<Self, Error> {
        // SAFETY: the context is open as long as the device.
        let raw = unsafe { (device.api().ibv_create_comp_channel)(device.context().as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_comp_channel"))?;
        let channel = Self { raw, device: Arc::clone(device) };
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> c_int {
        // SAFETY: the channel is alive.
        unsafe { (*self.raw.as_ptr()).fd }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: the only completion queue on the channel is destroyed before its channel is dropped.
        let answer = unsafe { (self.device.api().ibv_destroy_comp_channel)(self.raw.as_ptr()) };
        debug_assert_ne!(answer, libc::EBUSY, "a completion channel was still in use");
    }
}

/// A completion queue, the only one on its channel.
pub struct CompletionQueue {
    raw: NonNull<ffi::Cq>,
    poll_cq: unsafe extern "C" fn(*mut ffi::Cq, c_int, *mut ffi::WorkCompletion) -> c_int,
    req_notify_cq: unsafe extern "C" fn(*mut ffi::Cq, c_int) -> c_int,
    /// Dropped after the queue, which reports to the channel.
    channel: CompletionChannel,
}

// SAFETY: polling and arming are thread-safe in every provider, and so are the calls of libibverbs on the channel.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue of at least `entries` entries, with a channel of its own.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `entries` exceeds the device's `max_cqe`, else the error of `ibv_create_cq`.
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

    /// Takes up to `completions.len()` completions, and returns how many. Fewer than requested means that the queue is
    /// empty.
    ///
    /// # Errors
    ///
    /// `EIO` if the device reported an error.
    pub fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, Error> {
        let room = c_int::try_from(completions.len()).unwrap_or(c_int::MAX);
        // SAFETY: `WorkCompletion` is a transparent `ibv_wc`, and there is room for `room` of them.
        let taken = unsafe { (self.poll_cq)(self.raw.as_ptr(), room, completions.as_mut_ptr().cast()) };
        usize::try_from(taken).map_err(|_| Error::Call { call: "ibv_poll_cq", errno: libc::EIO })
    }

    /// Requests an event on the channel at the next completion. Completions that are already there do not count: poll
    /// once more before sleeping.
    ///
    /// # Errors
    ///
    /// The error of `ibv_req_notify_cq`.
    pub fn request_notification(&self) -> Result<(), Error> {
        // SAFETY: the queue is alive.
        check("ibv_req_notify_cq", unsafe { (self.req_notify_cq)(self.raw.as_ptr(), 0) })
    }

    /// Takes and acknowledges the channel's event, and returns whether there was one. An event may stand for several
    /// completions.
    ///
    /// There is at most one event: the queue makes one after each [`CompletionQueue::request_notification`], and is the
    /// only queue on its channel. So each sleep costs one such system call.
    ///
    /// # Errors
    ///
    /// The error of `ibv_get_cq_event`.
    pub fn take_event(&self) -> Result<bool, Error> {
        let api = self.channel.device.api();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is open, and the call writes to both pointers.
        if unsafe { (api.ibv_get_cq_event)(self.channel.raw.as_ptr(), &mut queue, &mut context) } != 0 {
            let error = Error::last("ibv_get_cq_event");
            return if error.errno() == Some(libc::EAGAIN) { Ok(false) } else { Err(error) };
        }
        // SAFETY: this queue is the only one on the channel, so the event is its own.
        unsafe { (api.ibv_ack_cq_events)(self.raw.as_ptr(), 1) };
        Ok(true)
    }
}

/// The descriptor of the channel, to sleep on.
impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: every queue pair that completes here holds an `Arc` of the queue, so that none is left. All events
        // are acknowledged.
        let answer = unsafe { (self.channel.device.api().ibv_destroy_cq)(self.raw.as_ptr()) };
        debug_assert_ne!(answer, libc::EBUSY, "a completion queue was still in use");
    }
}

/// The completion of one work request.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct WorkCompletion(ffi::WorkCompletion);

impl WorkCompletion {
    /// Returns the number with which the work request was posted. Valid whatever the outcome.
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Returns the number of bytes that a successful receive got.
    pub fn bytes(&self) -> u32 {
        self.0.byte_len
    }

    /// Reports whether the work request succeeded.
    pub fn is_success(&self) -> bool {
        self.0.status == ffi::WC_SUCCESS
    }

    /// Reports whether the work request was returned undone, because the queue pair had already failed or been
    /// disconnected.
    pub fn is_flushed(&self) -> bool {
        self.0.status == ffi::WC_WR_FLUSH_ERR
    }

    /// Returns libibverbs' description of the outcome, with the device's own code.
    pub fn reason(&self) -> String {
        // SAFETY: the call returns a static string for any number.
        let words = |api: &Api| unsafe { CStr::from_ptr((api.ibv_wc_status_str)(self.0.status)) }.to_string_lossy();
        let words = api().map_or("unknown".into(), words);
        format!("{words} (status {}, vendor {:#x})", self.0.status, self.0.vendor_err)
    }
}

/// Maximum amounts of work outstanding on a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    /// Number of sends.
    pub sends: u32,
    /// Number of receives.
    pub receives: u32,
    /// Number of scatter-gather entries of each work request.
    pub segments: u32,
    /// Length of a message, in bytes, that can be handed to the adapter within the work request, instead of being
    /// fetched by the adapter. If the device does not allow that length, no message is sent inline.
    pub inline_bytes: u32,
}

/// A reliable queue pair, with the identifier that connects it.
pub struct QueuePair {
    raw: NonNull<ffi::Qp>,
    post_send: unsafe extern "C" fn(*mut ffi::Qp, *mut ffi::SendWr, *mut *mut ffi::SendWr) -> c_int,
    post_recv: unsafe extern "C" fn(*mut ffi::Qp, *mut ffi::RecvWr, *mut *mut ffi::RecvWr) -> c_int,
    inline_bytes: u32,
    /// Dropped after the queue pair (which `drop` destroys), and before the objects that it uses.
    id: Id,
    _queue: Arc<CompletionQueue>,
    /// The region from which messages are posted, so that it outlives them.
    messages: Arc<MessageRegion>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: posting is thread-safe in every provider; all other calls are ioctls.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Creates a queue pair on `id`, which is bound to the device of `domain`. Sends and receives complete on `queue`.
    /// Receives may be posted at once.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], or the error of `rdma_create_qp`: `EINVAL` or `ENOMEM` for depths beyond the device's
    /// limits.
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
        let cap = ffi::QpCap {
            max_send_wr: depths.sends,
            max_recv_wr: depths.receives,
            max_send_sge: depths.segments,
            max_recv_sge: depths.segments,
            max_inline_data: depths.inline_bytes,
        };
        let mut attributes = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap,
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        let create = |attributes: &mut ffi::QpInitAttr| {
            // SAFETY: the identifier is bound to the domain's device. All objects named are alive and kept by `self`.
            let answer = unsafe { (id.api().rdma_create_qp)(id.raw.as_ptr(), domain.raw(), attributes) };
            check("rdma_create_qp", answer)
        };
        // The call writes the granted limits into the attributes. Devices do not tell in advance how much they can
        // inline.
        let mut granted = depths.inline_bytes;
        if let Err(error) = create(&mut attributes) {
            if depths.inline_bytes == 0 {
                return Err(error);
            }
            granted = 0;
            attributes.cap = ffi::QpCap { max_inline_data: 0, ..cap };
            create(&mut attributes)?;
        }
        // SAFETY: the identifier is alive, and its queue pair was just created.
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

    /// Returns the identifier, by which to connect, accept and disconnect.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Returns the region from which messages are posted.
    pub fn messages(&self) -> &MessageRegion {
        &self.messages
    }

    /// Moves the queue pair to its error state: posted work is returned as flushed.
    ///
    /// # Errors
    ///
    /// The error of `ibv_modify_qp`.
    pub fn fail(&self) -> Result<(), Error> {
        let mut attributes = ffi::QpAttr { qp_state: ffi::QPS_ERR, rest: [0; 35] };
        // SAFETY: the queue pair is alive; the mask says that only the state is set.
        let answer = unsafe { (self.id.api().ibv_modify_qp)(self.raw.as_ptr(), &mut attributes, ffi::QP_STATE) };
        check("ibv_modify_qp", answer)
    }

    /// Sends the first `length` bytes of a slot of the queue pair's message region.
    ///
    /// # Errors
    ///
    /// The error of `ibv_post_send`; `ENOMEM` if the queue is full.
    pub fn send_message(&self, work_id: u64, slot: u32, length: u32) -> Result<(), Error> {
        // SAFETY: the slot lies in the region that `self` keeps alive, and is accessed only by copying.
        unsafe { self.send(work_id, &[self.messages.segment(slot, length)]) }
    }

    /// Sends as [`QueuePair::send_message`] does, inline if the message is short enough. Without `signalled`, the send
    /// has a completion only if it fails. The completion of a later signalled send then stands for this send as well.
    /// Until that completion has been polled, this send takes up its place in the queue.
    ///
    /// # Errors
    ///
    /// The error of `ibv_post_send`; `ENOMEM` if the queue is full.
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
    /// The error of `ibv_post_recv`; `ENOMEM` if the queue is full.
    pub fn receive_message(&self, work_id: u64, slot: u32) -> Result<(), Error> {
        let length = u32::try_from(self.messages.slot_bytes()).unwrap_or(u32::MAX);
        // SAFETY: as in `send_message`.
        unsafe { self.receive(work_id, &[self.messages.segment(slot, length)]) }
    }

    /// Sends segments, at most [`Depths::segments`], as one message.
    ///
    /// # Safety
    ///
    /// Until the completion has been polled, or this queue pair dropped, the segments' memory must stay mapped, and no
    /// thread may write to it.
    ///
    /// # Errors
    ///
    /// The error of `ibv_post_send`; `ENOMEM` if the queue is full. Nothing was posted then.
    pub unsafe fn send(&self, work_id: u64, segments: &[Segment]) -> Result<(), Error> {
        // SAFETY: the caller guarantees what `post` requires.
        unsafe { self.post(work_id, segments, ffi::SEND_SIGNALED) }
    }

    /// # Safety
    ///
    /// As for [`QueuePair::send`].
    unsafe fn post(&self, work_id: u64, segments: &[Segment], flags: std::ffi::c_uint) -> Result<(), Error> {
        let mut request = ffi::SendWr {
            wr_id: work_id,
            next: ptr::null_mut(),
            sg_list: segments.as_ptr().cast_mut(),
            num_sge: segments.len() as c_int,
            opcode: ffi::WR_SEND,
            send_flags: flags,
            imm_data: 0,
            unions: [0; 11],
        };
        let mut refused = ptr::null_mut();
        // SAFETY: the request and its list outlive the call, which copies them and does not write to the list. The
        // caller guarantees the memory.
        check("ibv_post_send", unsafe { (self.post_send)(self.raw.as_ptr(), &mut request, &mut refused) })
    }

    /// Posts segments, at most [`Depths::segments`], to receive one message into. The segments are filled in order.
    ///
    /// # Safety
    ///
    /// Until the completion has been polled, or this queue pair dropped, the segments' memory must stay mapped, and no
    /// thread may read or write it.
    ///
    /// # Errors
    ///
    /// The error of `ibv_post_recv`; `ENOMEM` if the queue is full. Nothing was posted then.
    pub unsafe fn receive(&self, work_id: u64, segments: &[Segment]) -> Result<(), Error> {
        let mut request = ffi::RecvWr {
            wr_id: work_id,
            next: ptr::null_mut(),
            sg_list: segments.as_ptr().cast_mut(),
            num_sge: segments.len() as c_int,
        };
        let mut refused = ptr::null_mut();
        // SAFETY: as in `send`.
        check("ibv_post_recv", unsafe { (self.post_recv)(self.raw.as_ptr(), &mut request, &mut refused) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // Not while an event is read on the identifier's channel: that may be changing this queue pair's state.
        let _reading = self.id.channel.lock();
        // SAFETY: the queue pair is destroyed once, before its identifier. From here on the device touches none of its
        // memory.
        unsafe { (self.id.api().rdma_destroy_qp)(self.id.raw.as_ptr()) };
    }
}
