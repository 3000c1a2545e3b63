# Homebrew on Linux: `brew install --formula martlet.rb`, or in a tap as Formula/martlet.rb.
class Martlet < Formula
  desc "Runs Qwen3-Next, 3.5 and 3.6 models on your own machine"
  homepage "@URL@"
  version "@VERSION@"
  license "Apache-2.0"

  depends_on :linux

  on_intel do
    url "@URL@/martlet-@VERSION@-x86_64-linux.tar.gz"
    sha256 "@SHA256:martlet-@VERSION@-x86_64-linux.tar.gz@"
  end
  on_arm do
    url "@URL@/martlet-@VERSION@-aarch64-linux.tar.gz"
    sha256 "@SHA256:martlet-@VERSION@-aarch64-linux.tar.gz@"
  end

  def install
    bin.install "martlet"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/martlet.bash" => "martlet"
    zsh_completion.install "completions/martlet.zsh" => "_martlet"
    fish_completion.install "completions/martlet.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/martlet --version")
    refute_empty shell_output("#{bin}/martlet chat --quiet hello")
  end
end
