# Installs by the formula, without Homebrew: the little of its language that the formula uses, for one processor. The
# archive is taken from a folder instead of its URL, and must have the formula's checksum.
#
# Usage: ruby test_formula.rb FILES x86_64|aarch64 CELLAR
require "digest"
require "fileutils"
require "tmpdir"

FILES, ARCH, CELLAR = ARGV

# A folder that files are installed into.
class Place
  def initialize(name)
    @path = File.join(CELLAR, name)
  end

  def install(what)
    pairs = what.is_a?(Hash) ? what : Array(what).to_h { |file| [file, File.basename(file)] }
    raise "nothing to install into #{@path}" if pairs.empty?

    FileUtils.mkdir_p(@path)
    pairs.each { |from, to| FileUtils.cp(from, File.join(@path, to)) }
  end

  def to_s
    @path
  end
end

class Formula
  class << self
    attr_reader :said

    %i[desc homepage version license url sha256].each do |name|
      define_method(name) { |value| (@said ||= {})[name] = value }
    end

    def depends_on(what)
      raise "#{what} is not simulated" unless what == :linux
    end

    def on_intel
      yield if ARCH == "x86_64"
    end

    def on_arm
      yield if ARCH == "aarch64"
    end

    # What follows it needs Homebrew.
    def test; end
  end

  def bin = Place.new("bin")
  def man1 = Place.new("man1")
  def bash_completion = Place.new("bash")
  def zsh_completion = Place.new("zsh")
  def fish_completion = Place.new("fish")
end

load File.join(FILES, "martlet.rb")
said = Martlet.said
raise "the description is longer than Homebrew allows" if said[:desc].length > 80
raise "version #{said[:version]}" unless said[:version] == File.read(File.join(FILES, "latest")).strip

archive = File.join(FILES, File.basename(said[:url]))
raise "#{archive}: its checksum is not the formula's" unless Digest::SHA256.file(archive).hexdigest == said[:sha256]
raise "#{said[:url]} is not for #{ARCH}" unless archive.include?(ARCH)

Dir.mktmpdir do |dir|
  system("tar", "-xzf", archive, "-C", dir, exception: true)
  # As Homebrew does: the one folder of an archive is where the work is done.
  Dir.chdir(File.join(dir, Dir.children(dir).fetch(0))) { Martlet.new.install }
end
