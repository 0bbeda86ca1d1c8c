// Copyright (c) 2026, the executorch-mutbuf authors.
// This source code is licensed under the BSD-style license found in the
// LICENSE file in the root directory of this source tree.

// Runs `prefill` and `decode` of one program over one set of arenas: what one method leaves
// in a shared buffer the other finds there, whichever arena the buffer is in.

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

using executorch::aten::ScalarType;
using executorch::extension::FileDataLoader;
using executorch::extension::MallocMemoryAllocator;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;

namespace {

// Says what failed for whom and returns the error, so that it is told once, where it arose.
Error told(Error error, const std::string& whose, const std::string& doing) {
  const char* name = executorch::runtime::to_string(error);
  std::fprintf(
      stderr, "shared_arenas: %s: cannot %s: %s\n", whose.c_str(), doing.c_str(), name);
  return error;
}

// Bytes that all methods work on in turn, at an address that suits any planned offset.
class Arena {
 public:
  // Mutable buffers start at zero, and nothing but this sets them so. Nullopt: no memory.
  static std::optional<Arena> zeroed(size_t size) {
    Arena arena;
    arena.size_ = size;
    arena.blocks_.reset(new (std::nothrow) Block[size / sizeof(Block) + 1]());
    return arena.blocks_ ? std::optional(std::move(arena)) : std::nullopt;
  }

  Span<uint8_t> span() const {
    return {blocks_[0].bytes, size_};
  }

 private:
  struct alignas(64) Block {
    uint8_t bytes[64];
  };
  std::unique_ptr<Block[]> blocks_;
  size_t size_ = 0;
};

// The bytes that a method asks for, arena by arena.
Result<std::vector<size_t>> arena_sizes(const Program& program, const std::string& method) {
  const Result<MethodMeta> meta = program.method_meta(method.c_str());
  if (!meta.ok()) {
    return told(meta.error(), method, "find the method in the program");
  }
  std::vector<size_t> sizes;
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
    const std::string arena = "arena " + std::to_string(i + 1);
    const auto size = meta->memory_planned_buffer_size(i);
    if (!size.ok()) {
      return told(size.error(), method, "read the size of " + arena);
    }
    const auto device = meta->memory_planned_buffer_device(i);
    if (!device.ok()) {
      return told(device.error(), method, "read the device of " + arena);
    }
    if (!device->is_cpu()) {
      return told(Error::NotSupported, method, "allocate " + arena + " on an accelerator");
    }
    sizes.push_back(static_cast<size_t>(*size));
  }
  return sizes;
}

// One arena for all methods, as large as the one that needs most of it asks for.
Result<std::vector<Arena>> allocate_arenas(
    const Program& program,
    const std::vector<std::string>& methods) {
  std::vector<size_t> largest;
  for (const std::string& method : methods) {
    const auto sizes = arena_sizes(program, method);
    if (!sizes.ok()) {
      return sizes.error();
    }
    largest.resize(std::max(largest.size(), sizes->size()));
    for (size_t i = 0; i < sizes->size(); ++i) {
      largest[i] = std::max(largest[i], (*sizes)[i]);
    }
  }
  std::vector<Arena> arenas;
  for (const size_t size : largest) {
    const std::string name = "arena " + std::to_string(arenas.size() + 1);
    std::optional<Arena> arena = Arena::zeroed(size);
    if (!arena) {
      return told(
          Error::MemoryAllocationFailed, name, "allocate " + std::to_string(size) + " bytes");
    }
    std::printf("%s: %zu bytes\n", name.c_str(), size);
    arenas.push_back(std::move(*arena));
  }
  return arenas;
}

// A method from tokens to the next token, with what has to live as long as it does.
class LoadedMethod {
 public:
  // `arenas` has to outlive this. Nothing else may be called where `error` isn't Ok.
  LoadedMethod(const Program& program, std::string name, HierarchicalAllocator& arenas)
      : name_(std::move(name)),
        memory_(&own_, &arenas),
        method_(program.load_method(name_.c_str(), &memory_)) {}
  // The members point at each other.
  LoadedMethod(const LoadedMethod&) = delete;
  LoadedMethod& operator=(const LoadedMethod&) = delete;

  const std::string& name() const {
    return name_;
  }

  Error error() const {
    return method_.error();
  }

  Result<int64_t> run(std::vector<int64_t> tokens) {
    const std::string count = std::to_string(tokens.size());
    const auto tensor = executorch::extension::from_blob(
        tokens.data(), {static_cast<int32_t>(tokens.size())}, ScalarType::Long);
    if (const Error error = method_->set_input(EValue(*tensor), 0); error != Error::Ok) {
      return told(error, name_, "set the input to " + count + " token(s)");
    }
    if (const Error error = method_->execute(); error != Error::Ok) {
      return told(error, name_, "execute the method on " + count + " token(s)");
    }
    return next_token();
  }

 private:
  // The output lies in an arena: whatever runs next may overwrite it.
  Result<int64_t> next_token() const {
    if (method_->outputs_size() == 1 && method_->get_output(0).isTensor()) {
      const auto& output = method_->get_output(0).toTensor();
      if (output.scalar_type() == ScalarType::Long && output.numel() == 1 &&
          output.const_data_ptr() != nullptr) {
        return *output.const_data_ptr<int64_t>();
      }
    }
    return told(Error::InvalidType, name_, "read the output as one int64 token");
  }

  std::string name_;
  MallocMemoryAllocator own_;
  MemoryManager memory_;
  Result<Method> method_;
};

// Prints `count` tokens, of which `first` is the first and `decode` makes the others.
Error print_tokens(const char* title, LoadedMethod& decode, int64_t first, size_t count) {
  std::printf("%s: %" PRId64, title, first);
  int64_t last = first;
  for (size_t i = 1; i < count; ++i) {
    const Result<int64_t> next = decode.run({last});
    if (!next.ok()) {
      std::printf("\n");
      return next.error();
    }
    last = *next;
    std::printf(" %" PRId64, last);
  }
  std::printf("\n");
  return Error::Ok;
}

// Prints `count` tokens that follow the prompt; twice, if `again`, and then the second time
// from a copy of the last arena, which has to be that of all state.
Error generate(
    const std::string& path,
    size_t count,
    const std::vector<int64_t>& prompt,
    bool again) {
  Result<FileDataLoader> loader = FileDataLoader::from(path.c_str());
  if (!loader.ok()) {
    return told(loader.error(), path, "open the file");
  }
  const Result<Program> program = Program::load(&*loader);
  if (!program.ok()) {
    return told(program.error(), path, "load the program");
  }
  const auto arenas = allocate_arenas(*program, {"prefill", "decode"});
  if (!arenas.ok()) {
    return arenas.error();
  }
  std::vector<Span<uint8_t>> spans;
  for (const Arena& arena : *arenas) {
    spans.push_back(arena.span());
  }
  HierarchicalAllocator memory({spans.data(), spans.size()});
  // Both before the first call: loading writes initial values, if a buffer has any.
  LoadedMethod prefill(*program, "prefill", memory);
  LoadedMethod decode(*program, "decode", memory);
  for (const LoadedMethod* method : {&prefill, &decode}) {
    if (method->error() != Error::Ok) {
      return told(method->error(), method->name(), "load the method");
    }
  }

  const Result<int64_t> first = prefill.run(prompt);
  if (!first.ok()) {
    return first.error();
  }
  const Span<uint8_t> state = spans.back();
  const std::vector<uint8_t> saved(state.begin(), state.end());
  const Error error = print_tokens("tokens", decode, *first, count);
  if (error != Error::Ok || !again) {
    return error;
  }
  std::copy(saved.begin(), saved.end(), state.begin());
  return print_tokens("again", decode, *first, count);
}

template <typename Number>
bool parse(std::string_view text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end;
}

} // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const bool again = !arguments.empty() && arguments[0] == "--again";
  if (again) {
    arguments.erase(arguments.begin());
  }
  size_t count = 0;
  bool understood = arguments.size() > 2 && parse(arguments[1], count) && count > 0;
  std::vector<int64_t> prompt(understood ? arguments.size() - 2 : 0);
  for (size_t i = 0; understood && i < prompt.size(); ++i) {
    understood = parse(arguments[i + 2], prompt[i]);
  }
  if (!understood) {
    std::fprintf(stderr, "usage: shared_arenas [--again] MODEL.pte COUNT TOKEN...\n");
    return 2;
  }
  executorch::runtime::runtime_init();
  const std::string path(arguments[0]);
  return generate(path, count, prompt, again) == Error::Ok ? 0 : 1;
}
