"""A party's table: from the files and frames that people have to the arrays that SimFL works on."""
