-- tolerates: 4
-- Builds that know less would change documents and leave their old values in the indexes.
--
-- Fingerprint of the indexes that this version is entered in; 0: none; negative: but for
-- a unique value that another one has.
ALTER TABLE documents ADD COLUMN indexed INTEGER NOT NULL DEFAULT 0;

-- Finds the documents that are not entered in the indexes a program knows.
CREATE INDEX documents_indexed ON documents (category, indexed);

-- What documents are found by: the values of domain.Index.
CREATE TABLE document_index (
    category TEXT NOT NULL,
    name     TEXT NOT NULL,
    id       TEXT NOT NULL,
    value    TEXT NOT NULL CHECK (value <> ''),
    PRIMARY KEY (category, name, id)
) WITHOUT ROWID;

CREATE INDEX document_index_value ON document_index (category, name, value, id);

-- What documents are found by and no two of them have: the values of domain.Unique.
CREATE TABLE document_unique (
    category TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL CHECK (value <> ''),
    id       TEXT NOT NULL,
    PRIMARY KEY (category, name, value),
    UNIQUE (category, name, id)
) WITHOUT ROWID;
