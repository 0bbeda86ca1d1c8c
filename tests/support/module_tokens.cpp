// Copyright (c) 2026, the executorch-mutbuf authors.
// This source code is licensed under the BSD-style license found in the
// LICENSE file in the root directory of this source tree.

// What ExecuTorch's `Module` makes of a program, with `share_memory_arenas=true`: prints
// tokens as the example does. Used by test_shared_arenas.py in place of the example's main.

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s MODEL.pte COUNT TOKEN...\n", argv[0]);
    return 2;
  }
  using executorch::extension::Module;
  Module module(argv[1], Module::LoadMode::File, nullptr, nullptr, nullptr, true);
  std::vector<int64_t> tokens;
  for (int i = 3; i < argc; ++i) {
    tokens.push_back(std::atoll(argv[i]));
  }
  std::printf("tokens:");
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    const auto input = executorch::extension::from_blob(
        tokens.data(),
        {static_cast<int32_t>(tokens.size())},
        executorch::aten::ScalarType::Long);
    const auto next = module.get(i == 0 ? "prefill" : "decode", *input);
    if (!next.ok()) {
      std::fprintf(stderr, "%s\n", executorch::runtime::to_string(next.error()));
      return 1;
    }
    tokens = {*next->toTensor().const_data_ptr<int64_t>()};
    std::printf(" %" PRId64, tokens[0]);
  }
  std::printf("\n");
  return 0;
}
