// What the tests of both APIs share; see support.py.

export const MODEL_URL = process.env.MARTLET_MODEL_URL ?? "http://127.0.0.1:8080"; // fledgling answers
export const SCRIPT_URL = process.env.MARTLET_SCRIPT_URL ?? "http://127.0.0.1:8081"; // script.txt answers
export const KEY = process.env.MARTLET_TEST_KEY ?? ""; // of the first
export const NAME = "fledgling";

export const WEATHER = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city"],
};
export const WRITE = {
  type: "object",
  properties: {
    path: { type: "string" },
    text: { type: "string" },
    mode: { type: "integer" },
    options: { type: "object" },
  },
  required: ["path", "text"],
};
// What `write the file` of script.txt means by WRITE.
export const WRITTEN = {
  path: "02134",
  text: '\n    if x < 1 && y > 2:  \n\n\treturn "</parameter> é 漢 🐦"\n',
  mode: 420,
  options: { backup: true, tags: ["a", null, 1.5] },
};
export const MARKDOWN = '# naïve 漢字 🐦‍⬛\n\n```js\na = b < c && d > "e";\n```\n\n- one\n- two';
export const BIRD = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, legs: { enum: [0, 2] }, swift: { type: "boolean" } },
  required: ["name", "legs", "swift"],
  additionalProperties: false,
};

export const user = (content) => [{ role: "user", content }];

export function isBird(bird) {
  return typeof bird.name === "string" && [0, 2].includes(bird.legs) && typeof bird.swift === "boolean";
}

/** Turns of the model's server that ended so. */
export async function finished(reason) {
  const response = await fetch(MODEL_URL + "/metrics", { headers: { authorization: `Bearer ${KEY}` } });
  const lines = (await response.text()).split("\n");
  const ours = lines.filter((l) => l.startsWith("martlet_finished_total") && l.includes(`reason="${reason}"`));
  return ours.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(" "))), 0);
}

/** Waits for what takes its moment, such as a cancelled turn's end. */
export async function until(what, holds) {
  for (let i = 0; i < 600; i++) {
    if (await holds()) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`never came: ${what}`);
}

