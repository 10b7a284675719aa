#pragma once

#include <memory>

#include "model/batch.h"
#include "model/observer.h"
#include "palimpsest/logit_facts.h"
#include "palimpsest/model.h"
#include "runtime/picture.h"
#include "state/state_pool.h"
#include "tensor/exec_context.h"

namespace palimpsest {

/// What computes a pass: the model, or in tests something that stands for it.
class PassRunner {
 public:
  virtual ~PassRunner() = default;
  virtual std::int64_t vocab_size() const = 0;
  struct Rows {
    Tensor logits;  ///< F32 [logit_rows, vocab], valid until the next pass; undefined where there are facts
    std::span<const LogitFacts> facts;  ///< of each sequence's last row, valid until the next pass
    Tensor
        hidden;  ///< F32 [T, hidden] after the final norm, valid until the next pass; if asked for
  };
  /// As forward(). Afterwards the sequences are `batch` longer. May throw: then their states are
  /// undefined.
  virtual Rows run(const Batch& batch, StatePool& states, bool with_hidden) = 0;
  /// The same where only the last row of each sequence is wanted, and that perhaps not as numbers: with facts instead of logits where
  /// the model lies on a device. `inverse`: as forward_to_slots().
  virtual Rows run_to_slots(const Batch& batch, StatePool& states, bool with_hidden, std::span<const double> inverse) {
    (void)inverse;
    return run(batch, states, with_hidden);
  }
  /// Looks on in the passes from here on; null: nobody does.
  virtual void observe(Observer* observer) { (void)observer; }
  /// For work between passes.
  virtual base::ThreadPool& threads() = 0;
  /// The rows of pictures; null: the model reads none.
  virtual PictureRows* pictures() { return nullptr; }
  /// PictureRows::work.
  virtual bool work_on_pictures() { return false; }
};

/// Runs forward() with a workspace of so many bytes.
std::unique_ptr<PassRunner> make_model_runner(std::shared_ptr<const Model> model, int threads,
                                              std::int64_t workspace_bytes,
                                              Activations activations,
                                              std::shared_ptr<const VisionTower> tower = nullptr);

}  // namespace palimpsest
