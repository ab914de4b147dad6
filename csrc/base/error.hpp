#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/export.hpp"

// The one hierarchy of errors. Python has the same classes, written and documented in rdmatx/errors.py;
// the binding layer translates by type, so a class added here is added there.
// Every message says what was wrong and what to do about it.

namespace rdmatx {

class RDMATX_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// No library, module, device or capability. The message holds the reason and the remedy.
class RDMATX_API UnavailableError : public Error {
 public:
  using Error::Error;
};

/// A documented rule was broken by the caller.
class RDMATX_API UsageError : public Error {
 public:
  using Error::Error;
};

/// A message does not fit the buffer it was to go to. Sizes in bytes.
class RDMATX_API SizeMismatchError : public Error {
 public:
  SizeMismatchError(const std::string& message, uint64_t needed_bytes, uint64_t available_bytes)
      : Error(message), needed_bytes_(needed_bytes), available_bytes_(available_bytes) {}
  uint64_t needed_bytes() const noexcept { return needed_bytes_; }
  uint64_t available_bytes() const noexcept { return available_bytes_; }

 private:
  uint64_t needed_bytes_;
  uint64_t available_bytes_;
};

/// Used after close().
class RDMATX_API ClosedError : public Error {
 public:
  using Error::Error;
};

/// A verb failed. `call` is the verb's name ("ibv_reg_mr"), `code` the errno, `context` the attributes used
/// and, where known, the cause and the remedy.
class RDMATX_API VerbsError : public Error {
 public:
  VerbsError(std::string call, int code, const std::string& context = {});
  const std::string& call() const noexcept { return call_; }
  int code() const noexcept { return code_; }

 private:
  std::string call_;
  int code_;
};

/// The CUDA driver failed.
class RDMATX_API CudaError : public Error {
 public:
  CudaError(std::string call, int code, const std::string& message)
      : Error(message), call_(std::move(call)), code_(code) {}
  const std::string& call() const noexcept { return call_; }
  int code() const noexcept { return code_; }

 private:
  std::string call_;
  int code_;
};

/// An operation failed on the wire. `status` is an ibv_wc_status.
class RDMATX_API CompletionError : public Error {
 public:
  CompletionError(const std::string& message, int status, uint32_t vendor_error, std::string peer,
                  std::string operation)
      : Error(message),
        status_(status),
        vendor_error_(vendor_error),
        peer_(std::move(peer)),
        operation_(std::move(operation)) {}
  int status() const noexcept { return status_; }
  uint32_t vendor_error() const noexcept { return vendor_error_; }
  const std::string& peer() const noexcept { return peer_; }
  const std::string& operation() const noexcept { return operation_; }

 private:
  int status_;
  uint32_t vendor_error_;
  std::string peer_;
  std::string operation_;
};

/// The other side is gone.
class RDMATX_API PeerLostError : public Error {
 public:
  PeerLostError(const std::string& message, std::string peer) : Error(message), peer_(std::move(peer)) {}
  const std::string& peer() const noexcept { return peer_; }

 private:
  std::string peer_;
};

/// The secrets of the two sides differ.
class RDMATX_API AuthenticationError : public Error {
 public:
  AuthenticationError(const std::string& message, std::string peer)
      : Error(message), peer_(std::move(peer)) {}
  const std::string& peer() const noexcept { return peer_; }

 private:
  std::string peer_;
};

/// Nothing happened within the time allowed.
class RDMATX_API TimeoutError : public Error {
 public:
  TimeoutError(const std::string& message, std::string peer, std::string operation, double seconds)
      : Error(message), peer_(std::move(peer)), operation_(std::move(operation)), seconds_(seconds) {}
  const std::string& peer() const noexcept { return peer_; }
  const std::string& operation() const noexcept { return operation_; }
  double seconds() const noexcept { return seconds_; }

 private:
  std::string peer_;
  std::string operation_;
  double seconds_;
};

/// "No such file or directory (ENOENT)": the text and the symbolic name of an errno. Thread-safe.
RDMATX_API std::string describe_errno(int code);

}  // namespace rdmatx
