-- tolerates: 4
-- Builds that know less would change documents and leave their old values in the indexes.
--
-- Texts compare by their bytes, as on SQLite: what is listed in the order of its
-- identities has one order, whatever the locale of the database is.
ALTER TABLE documents
    ALTER COLUMN category TYPE text COLLATE "C",
    ALTER COLUMN id TYPE text COLLATE "C",
    ADD COLUMN indexed bigint NOT NULL DEFAULT 0;

COMMENT ON COLUMN documents.indexed IS 'fingerprint of the indexes that this version is entered in; 0: none; negative: but for a unique value that another one has';

-- Finds the documents that are not entered in the indexes a program knows.
CREATE INDEX documents_indexed ON documents (category, indexed);

CREATE TABLE document_index (
    category text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    id       text COLLATE "C" NOT NULL,
    value    text COLLATE "C" NOT NULL CHECK (value <> ''),
    PRIMARY KEY (category, name, id)
);

CREATE INDEX document_index_value ON document_index (category, name, value, id);

COMMENT ON TABLE document_index IS 'What documents are found by: the values of domain.Index.';

CREATE TABLE document_unique (
    category text COLLATE "C" NOT NULL,
    name     text COLLATE "C" NOT NULL,
    value    text COLLATE "C" NOT NULL CHECK (value <> ''),
    id       text COLLATE "C" NOT NULL,
    PRIMARY KEY (category, name, value),
    UNIQUE (category, name, id)
);

COMMENT ON TABLE document_unique IS 'What documents are found by and no two of them have: the values of domain.Unique.';
