// The only file that knows gloo. Debian's gloo, linked before LibTorch's copy of it
// (docs/architecture/folders.md).
#include "runtime/comm/gloo_channel.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <csignal>
#include <mutex>
#include <set>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/comm/channel.h"

namespace millrace {
namespace {

/// Gloo's rendezvous over our store.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<millrace::Store> store, std::chrono::milliseconds deadline)
      : store_(std::move(store)), deadline_(deadline) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set("gloo/" + key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->get("gloo/" + key, deadline_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, deadline_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) store_->get("gloo/" + key, timeout);
  }

 private:
  std::shared_ptr<millrace::Store> store_;
  std::chrono::milliseconds deadline_;
};

/// The mesh, and the buffers in flight, so that abort() can wake their waiters.
struct Mesh {
  std::shared_ptr<gloo::transport::Device> device;
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::mutex mutex;  // guards what follows
  std::set<gloo::transport::UnboundBuffer*> in_flight;
  std::string aborted;
};

/// Gloo's slot of a message. Gloo does not say how many bytes came, and a shorter message would leave the
/// rest of the tensor as it was; so the length is part of what the two ends meet by: one of another length,
/// from a rank with another plan or another program, is never taken, and both ends say theirs at the
/// deadline.
std::uint64_t slot_of(std::uint64_t tag, std::size_t bytes) {
  return derive_seed(tag, "bytes", bytes);
}

class GlooPending final : public Pending {
 public:
  GlooPending(std::shared_ptr<Mesh> mesh, const CommunicatorOptions& options, Transfer transfer)
      : mesh_(std::move(mesh)),
        rank_(options.rank.value),
        transfer_(std::move(transfer)),
        deadline_(options.deadline),
        clock_(options.clock) {
    const std::size_t bytes = transfer_.tensor.nbytes();
    buffer_ = mesh_->context->createUnboundBuffer(transfer_.tensor.data_ptr(), bytes);
    {
      std::lock_guard lock(mesh_->mutex);
      throw_if_aborted(clock_.now());
      mesh_->in_flight.insert(buffer_.get());
    }
    try {
      const std::uint64_t slot = slot_of(transfer_.tag, bytes);
      if (transfer_.direction == Direction::Send)
        buffer_->send(transfer_.peer.value, slot, 0, bytes);
      else
        buffer_->recv(transfer_.peer.value, slot, 0, bytes);
    } catch (const std::exception& error) {
      forget();
      throw PeerError(wait_message(rank_, transfer_, clock_, clock_.now(), error.what()), kPeerEndedHint);
    }
  }

  ~GlooPending() override { forget(); }

  void wait() override {
    if (done_) return;
    const auto start = clock_.now();
    {
      // abort() wakes those who wait then; Gloo forgets it afterwards.
      std::lock_guard lock(mesh_->mutex);
      throw_if_aborted(start);
    }
    bool finished = false;
    try {
      finished = transfer_.direction == Direction::Send ? buffer_->waitSend(deadline_)
                                                        : buffer_->waitRecv(deadline_);
    } catch (const std::exception& error) {
      // Messages of different lengths (slot_of) end here: the first of the two ranks at its deadline, and by
      // what its Gloo then closes the other. So each says how many bytes are its own, however it ends.
      const bool late = clock_.now() - start >= deadline_, sends = transfer_.direction == Direction::Send;
      const std::string what = !late   ? "connection lost (" + std::string(error.what()) + ")"
                               : sends ? "not taken"
                                       : "no message";
      throw PeerError(wait_message(rank_, transfer_, clock_, start, what) +
                          (sends ? "; it has " : "; expected ") + std::to_string(transfer_.tensor.nbytes()) +
                          " bytes",
                      late ? kLateHint : kPeerEndedHint);
    }
    if (!finished) {
      std::lock_guard lock(mesh_->mutex);
      throw_if_aborted(start);
    }
    done_ = true;
    forget();
  }

 private:
  /// The caller holds the mesh's mutex.
  void throw_if_aborted(TimePoint start) const {
    if (!mesh_->aborted.empty())
      throw PeerError(wait_message(rank_, transfer_, clock_, start, "aborted: " + mesh_->aborted));
  }
  void forget() {
    std::lock_guard lock(mesh_->mutex);
    mesh_->in_flight.erase(buffer_.get());
  }

  std::shared_ptr<Mesh> mesh_;
  int rank_;
  Transfer transfer_;
  std::chrono::milliseconds deadline_;
  Clock& clock_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  bool done_ = false;
};

class GlooChannel final : public Channel {
 public:
  GlooChannel(const CommunicatorOptions& options, std::shared_ptr<Store> store)
      : options_(options), mesh_(std::make_shared<Mesh>()) {
    try {
      gloo::transport::tcp::attr attributes;
      attributes.hostname = options.interface_address;
      mesh_->device = gloo::transport::tcp::CreateDevice(attributes);
      log_info("listens on " + options.interface_address +
               " for Gloo's messages, on a port that Gloo chooses");
      mesh_->context = std::make_shared<gloo::rendezvous::Context>(options.rank.value, options.size);
      mesh_->context->setTimeout(options.rendezvous_deadline);
      GlooStore rendezvous(std::move(store), options.rendezvous_deadline);
      mesh_->context->connectFullMesh(rendezvous, mesh_->device);
      mesh_->context->setTimeout(options.deadline);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw PeerError("rank " + std::to_string(options.rank.value) + ": rendezvous of " +
                          std::to_string(options.size) + " ranks failed: " + error.what(),
                      "did all ranks start?");
    }
  }
  int rank() const override { return options_.rank.value; }
  int size() const override { return options_.size; }
  std::chrono::milliseconds deadline() const override { return options_.deadline; }
  Clock& clock() const override { return options_.clock; }
  bool buffers_sends() const override { return false; }

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.tensor.nbytes() == 0) return std::make_unique<NothingPending>();
    return std::make_unique<GlooPending>(mesh_, options_, transfer);
  }

  void abort(const std::string& reason) noexcept override {
    std::lock_guard lock(mesh_->mutex);
    if (mesh_->aborted.empty()) mesh_->aborted = reason.empty() ? "a rank failed" : reason;
    for (auto* buffer : mesh_->in_flight) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }

 private:
  CommunicatorOptions options_;
  std::shared_ptr<Mesh> mesh_;
};

}  // namespace

std::shared_ptr<Channel> make_gloo_channel(const CommunicatorOptions& options, std::shared_ptr<Store> store) {
  // Gloo writes to sockets whose peer may be gone. That is an error of this rank, not its silent end.
  ::signal(SIGPIPE, SIG_IGN);
  return std::make_shared<GlooChannel>(options, std::move(store));
}

}  // namespace millrace
