// What docs/clients/sdks.md shows works as written, but for address, key and name.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { KEY, MODEL_URL, NAME } from "./support.mjs";

const page = readFileSync(process.env.MARTLET_DOCS + "/sdks.md", "utf8");
for (const [i, [, code]] of [...page.matchAll(/^```js\n(.*?)^```/gms)].entries()) {
  test(`example ${i + 1}`, () => {
    const file = `example-${i + 1}.mjs`;
    const ours = { "http://127.0.0.1:8080": MODEL_URL, '"none"': `"${KEY}"`, '"martlet"': `"${NAME}"` };
    writeFileSync(file, Object.entries(ours).reduce((text, [from, to]) => text.replaceAll(from, to), code));
    assert.ok(execFileSync(process.execPath, [file], { encoding: "utf8" }).trim());
  });
}
