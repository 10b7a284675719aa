// Loads a model folder, reads a prompt, and prints the continuation as it is written: the whole path through the library.

#include <palimpsest/generate.h>
#include <palimpsest/tokenizer.h>

#include <iostream>

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: stream MODEL_FOLDER \"beginning of a text\"\n";
    return 2;
  }
  const auto model = palimpsest::Model::load(argv[1]);
  const auto tokenizer = palimpsest::Tokenizer::load(argv[1], model->config().vocab_size);

  palimpsest::Session session(model, {.context = 4096});
  palimpsest::Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 1}, model->config().vocab_size);
  palimpsest::StreamDecoder decoder(tokenizer, /*skip_special=*/true);

  palimpsest::GenerateOptions options;
  options.max_tokens = 64;
  options.stop_ids = tokenizer.stop_ids();
  options.on_token = [&](palimpsest::TokenId id) { std::cout << decoder.push(id) << std::flush; };

  std::cout << argv[2];
  std::vector<palimpsest::TokenId> held;  // what the session holds; kept for further turns
  palimpsest::generate(session, sampler, held, tokenizer.encode(argv[2]), options);
  std::cout << decoder.finish() << '\n';
} catch (const palimpsest::Error& error) {
  std::cerr << "stream: " << error.what() << '\n';
  return palimpsest::exit_code(error.code());
}
